//! A number that tells texts and settings from others. Not against forgers: it says whether two things are meant to be the same.

use crate::order::mix;

/// The number of `bytes`.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let mut state = mix(bytes.len() as u64 ^ 0x746f_6b65_6e73_2121);
    for eight in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..eight.len()].copy_from_slice(eight);
        state = mix(state.rotate_left(23) ^ mix(u64::from_le_bytes(word).wrapping_add(0x9e37_79b9_7f4a_7c15)));
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Part of what a prepared set means: these numbers may never change.
    #[test]
    fn a_digest_is_the_same_for_ever_and_sees_every_byte() {
        assert_eq!(digest(b"plimsoll"), 5_625_124_726_753_030_829);
        let text = b"tokenizer.json of a model".to_vec();
        let print = digest(&text);
        for at in 0..text.len() {
            let mut other = text.clone();
            other[at] ^= 1;
            assert_ne!(digest(&other), print, "byte {at}");
        }
        assert_ne!(digest(b"a"), digest(b"a\0"));
    }
}
