//! What a row of the data is.

/// What a row is, and so what a sample is made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A source and a target, for models with encoder and decoder.
    #[default]
    Pairs,
    /// A conversation; the assistant's part is trained.
    Chat,
    /// A text; every token is trained.
    Text,
}
