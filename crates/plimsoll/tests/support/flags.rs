//! Flags of the program, as a test changes them.

/// Flags with their values, each at most once.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    words: Vec<(String, Option<String>)>,
}

impl Flags {
    /// Sets a flag, in place of what it was.
    pub fn set(&mut self, flag: &str, value: impl ToString) {
        self.drop(flag);
        self.words.push((flag.into(), Some(value.to_string())));
    }

    /// Sets a flag that has no value.
    pub fn bare(&mut self, flag: &str) {
        self.words.push((flag.into(), None));
    }

    /// Takes a flag away.
    pub fn drop(&mut self, flag: &str) {
        self.words.retain(|(name, _)| name != flag);
    }

    /// As the program gets them.
    pub fn args(&self) -> impl Iterator<Item = &str> {
        self.words.iter().flat_map(|(flag, value)| std::iter::once(flag.as_str()).chain(value.as_deref()))
    }
}
