//! The names that folders among the checkpoints can have, and what each says.
//!
//! Invariant: `parse` and `name` are inverse to each other, so no name is read that would not be written. Names with a
//! leading dot carry the process that made them; they are nobody's checkpoint, except `Aside`.

/// A folder's role, read from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Folder {
    /// `step-N`: a checkpoint.
    Step(u64),
    /// `.tmp-step-N-PID`: being written.
    Temporary(u64, u32),
    /// `.aside-step-N-PID`: a whole checkpoint, out of the way for the instant in which its successor takes its name.
    Aside(u64, u32),
    /// `.old-step-N-PID`: being deleted.
    Old(u64, u32),
}

impl Folder {
    pub(super) fn name(self) -> String {
        match self {
            Folder::Step(step) => format!("step-{step}"),
            Folder::Temporary(step, pid) => format!(".tmp-step-{step}-{pid}"),
            Folder::Aside(step, pid) => format!(".aside-step-{step}-{pid}"),
            Folder::Old(step, pid) => format!(".old-step-{step}-{pid}"),
        }
    }

    pub(super) fn parse(name: &str) -> Option<Folder> {
        let folder = if let Some(step) = name.strip_prefix("step-") {
            Folder::Step(step.parse().ok()?)
        } else {
            let (role, rest) = name.split_once("-step-")?;
            let (step, pid) = rest.split_once('-')?;
            let (step, pid) = (step.parse().ok()?, pid.parse().ok()?);
            match role {
                ".tmp" => Folder::Temporary(step, pid),
                ".aside" => Folder::Aside(step, pid),
                ".old" => Folder::Old(step, pid),
                _ => return None,
            }
        };
        // `step-007` and `step-+7` parse as numbers but are not names that we give.
        (folder.name() == name).then_some(folder)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_are_not_ours_are_nothing() {
        for name in
            ["step-", "step-007", "step-+7", "step-7x", ".tmp-step-7", ".tmp-step-7-", "latest", ".new-step-1-2"]
        {
            assert_eq!(Folder::parse(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn every_name_that_is_given_is_read_back(step: u64, pid: u32) {
            for folder in [Folder::Step(step), Folder::Temporary(step, pid), Folder::Aside(step, pid), Folder::Old(step, pid)] {
                prop_assert_eq!(Folder::parse(&folder.name()), Some(folder));
            }
        }

        #[test]
        fn no_name_panics(name in "\\PC*") {
            let _ = Folder::parse(&name);
        }
    }
}
