//! Special tokens: which there are, in the order of their ids, and what each is for.
//!
//! Invariant: no token is empty or there twice, and each role that the model's form needs has one. They come before all
//! other tokens, so their ids do not depend on the data. It knows no text.

use crate::{DataError, VocabularyModel};

/// What a special token is for, by the name that `tokenizer_config.json` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Pad,
    Eos,
    Unk,
    Bos,
    Cls,
    Sep,
    Mask,
}

const ROLES: [(Role, &str); 7] = [
    (Role::Pad, "pad"),
    (Role::Eos, "eos"),
    (Role::Unk, "unk"),
    (Role::Bos, "bos"),
    (Role::Cls, "cls"),
    (Role::Sep, "sep"),
    (Role::Mask, "mask"),
];

/// Special tokens in the order of their ids.
#[derive(Clone, Debug)]
pub(crate) struct SpecialTokens(Vec<(Option<Role>, String)>);

impl SpecialTokens {
    /// The model's own, and those that were `given`: `TOKEN` is one more, `eos=TOKEN` is the one for that role.
    pub fn of(model: VocabularyModel, given: &[String]) -> Result<SpecialTokens, DataError> {
        let usual: &[(Role, &str)] = match model {
            VocabularyModel::Bpe => &[(Role::Eos, "<|endoftext|>"), (Role::Pad, "<|pad|>")],
            VocabularyModel::Unigram => &[(Role::Pad, "<pad>"), (Role::Eos, "</s>"), (Role::Unk, "<unk>")],
            VocabularyModel::WordPiece => &[
                (Role::Pad, "[PAD]"),
                (Role::Unk, "[UNK]"),
                (Role::Cls, "[CLS]"),
                (Role::Sep, "[SEP]"),
                (Role::Mask, "[MASK]"),
            ],
        };
        let mut tokens: Vec<_> = usual.iter().map(|(role, token)| (Some(*role), token.to_string())).collect();
        for word in given {
            let (role, token) = role_of(word);
            if role.is_some_and(|role| given.iter().filter(|other| role_of(other).0 == Some(role)).count() > 1) {
                return Err(bad(word, "one token for each role"));
            }
            // BERT's end of a sequence is its separator.
            let same = |of: &Role| Some(*of) == role || (*of == Role::Sep && role == Some(Role::Eos));
            match tokens.iter_mut().find(|(of, _)| of.as_ref().is_some_and(same)) {
                Some((_, old)) => *old = token.into(),
                None => tokens.push((role, token.into())),
            }
        }
        for (at, (_, token)) in tokens.iter().enumerate() {
            if token.trim().is_empty() {
                return Err(bad(token, "a token with at least one character that is not blank"));
            }
            if tokens[..at].iter().any(|(_, before)| before == token) {
                return Err(bad(token, "each special token once"));
            }
        }
        Ok(SpecialTokens(tokens))
    }

    /// The tokens, the first with the id 0.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(|(_, token)| token.as_str())
    }

    /// The token for a role, with its id.
    pub fn get(&self, role: Role) -> Option<(&str, u32)> {
        let at = self.0.iter().position(|(of, _)| *of == Some(role))?;
        Some((&self.0[at].1, at as u32))
    }

    /// The token that ends a sequence, with its id.
    pub fn eos(&self) -> Option<(&str, u32)> {
        self.get(Role::Eos).or_else(|| self.get(Role::Sep))
    }

    /// The names that `tokenizer_config.json` has for roles, with their tokens.
    pub fn named(&self) -> impl Iterator<Item = (String, &str)> {
        let of = |(role, name): (Role, &str)| {
            let found = if role == Role::Eos { self.eos() } else { self.get(role) };
            found.map(|(token, _)| (format!("{name}_token"), token))
        };
        ROLES.into_iter().filter_map(of)
    }

    /// Tokens that have no role.
    pub fn others(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(role, _)| role.is_none()).map(|(_, token)| token.as_str())
    }

    /// `text` without special tokens: what lies before, between and behind them.
    pub fn without<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut parts = vec![text];
        for token in self.tokens() {
            if parts.iter().any(|part| part.contains(token)) {
                parts = parts.into_iter().flat_map(|part| part.split(token)).collect();
            }
        }
        parts
    }
}

fn role_of(word: &str) -> (Option<Role>, &str) {
    let named = word.split_once('=').and_then(|(name, token)| {
        let (role, _) = ROLES.into_iter().find(|(_, of)| *of == name)?;
        Some((Some(role), token))
    });
    named.unwrap_or((None, word))
}

fn bad(token: &str, expected: &'static str) -> DataError {
    DataError::BadSpecialToken { token: token.into(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(model: VocabularyModel, given: &[&str]) -> Result<SpecialTokens, String> {
        let given: Vec<String> = given.iter().map(|s| s.to_string()).collect();
        SpecialTokens::of(model, &given).map_err(|e| e.to_string())
    }

    #[test]
    fn roles_are_renamed_and_others_come_behind() {
        let tokens = of(VocabularyModel::Bpe, &["eos=<|im_end|>", "<|im_start|>", "bos=<s>", "a=b"]).unwrap();
        assert_eq!(tokens.tokens().collect::<Vec<_>>(), ["<|im_end|>", "<|pad|>", "<|im_start|>", "<s>", "a=b"]);
        assert_eq!((tokens.eos(), tokens.get(Role::Bos)), (Some(("<|im_end|>", 0)), Some(("<s>", 3))));
        assert_eq!(tokens.others().collect::<Vec<_>>(), ["<|im_start|>", "a=b"]);
        let bert = of(VocabularyModel::WordPiece, &["eos=</s>"]).unwrap();
        assert_eq!((bert.eos(), bert.get(Role::Sep)), (Some(("</s>", 3)), Some(("</s>", 3))));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (given, words) in [
            (&["<x>", "<x>"][..], "`<x>`: expected each special token once"),
            (&["eos=<|pad|>"], "`<|pad|>`: expected each special token once"),
            (&["eos="], "not blank"),
            (&["eos=a", "eos=b"], "one token for each role"),
        ] {
            let error = of(VocabularyModel::Bpe, given).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn texts_fall_apart_at_special_tokens() {
        let tokens = of(VocabularyModel::Unigram, &[]).unwrap();
        assert_eq!(tokens.without("a</s>b<pad></s>c"), ["a", "b", "", "c"]);
        assert_eq!(tokens.without("plain"), ["plain"]);
    }
}
