//! Why a job cannot be written down for a target: one variant a fact.

use thiserror::Error;

/// What cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeployError {
    /// No program takes it.
    #[error("`{what}` holds a zero byte, which no command line can")]
    ZeroByte {
        /// The word or path.
        what: String,
    },
    /// A path that is not absolute.
    #[error("the path `{path}` is not absolute")]
    NotAbsolute {
        /// The path.
        path: String,
    },
    /// A path that this target has no way to write.
    #[error("{target} cannot have `{path}` as {what}: it holds {found}")]
    Path {
        /// For whom.
        target: &'static str,
        /// The path.
        path: String,
        /// What it is for.
        what: &'static str,
        /// What is in the way.
        found: &'static str,
    },
    /// A name for a job that has no letter in it.
    #[error("`{text}` makes no name: expected a letter or a digit in it")]
    NoName {
        /// What was given.
        text: String,
    },
    /// Something that is not a variable's name.
    #[error("`{text}` is not the name of a variable: expected letters, digits and `_`, and no value")]
    NotAVariable {
        /// What was given, without what stands behind `=`.
        text: String,
    },
    /// A claim that is not `NAME=/PATH`.
    #[error("`{text}` is not a claim: expected NAME=/PATH")]
    NotAClaim {
        /// What was given.
        text: String,
    },
    /// The value of a secret variable would stand in the file.
    #[error("the value of `{name}` stands in it; a file that is kept and shared may hold the name alone")]
    Secret {
        /// The variable.
        name: String,
    },
    /// A URL with a password or a signature in it.
    #[error("a URL in it (`{url}...`) has credentials or a signature")]
    SecretUrl {
        /// Its harmless beginning.
        url: String,
    },
}
