use proptest::prelude::*;

use super::*;

fn path() -> impl Strategy<Value = FarPath> {
    "[a-zäß ._-]{1,12}(/[a-z0-9]{1,8}){0,3}".prop_filter_map("a path", |text| FarPath::new(text).ok())
}

fn stamp() -> impl Strategy<Value = Stamp> {
    let all = (any::<u64>(), any::<i64>(), any::<u32>(), any::<bool>(), any::<bool>());
    all.prop_map(|(length, seconds, nanos, executable, private)| Stamp { length, seconds, nanos, executable, private })
}

fn word() -> impl Strategy<Value = Word> {
    prop_oneof![Just(Word::Run), any::<String>().prop_map(Word::Said)]
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        Just(Ask::Lock {}),
        proptest::collection::vec(path(), 0..5).prop_map(|paths| Ask::Look { paths }),
        (path(), stamp(), any::<[u8; 32]>(), any::<bool>()).prop_map(|(path, stamp, digest, packed)| Ask::Write {
            path,
            stamp,
            digest: Digest(digest),
            packed
        }),
        (path(), any::<u64>()).prop_map(|(path, block)| Ask::Get { path, block }),
        (any::<String>(), any::<bool>(), proptest::collection::vec(word(), 0..4), any::<[u8; 32]>()).prop_map(
            |(name, fresh, words, asked)| Ask::Start {
                token: name.clone(),
                name,
                fresh,
                words,
                folder: None,
                asked: Digest(asked),
                beside: false
            }
        ),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(asks in proptest::collection::vec((ask(), proptest::collection::vec(any::<u8>(), 0..300)), 0..6)) {
        let mut wire = Vec::new();
        for (ask, body) in &asks {
            write_message(&mut wire, ask, body).unwrap();
        }
        let mut from = wire.as_slice();
        for expected in asks {
            prop_assert_eq!(read_message::<Ask>(&mut from).unwrap(), Some(expected));
        }
        prop_assert!(read_message::<Ask>(&mut from).unwrap().is_none());
    }

    #[test]
    fn a_message_that_is_cut_anywhere_is_an_error(ask in ask(), body in proptest::collection::vec(any::<u8>(), 0..40), at in any::<prop::sample::Index>()) {
        let mut wire = Vec::new();
        write_message(&mut wire, &ask, &body).unwrap();
        let kept = 1 + at.index(wire.len() - 1);
        prop_assert!(matches!(read_message::<Ask>(&mut &wire[..kept]), Err(WireError::Cut)));
    }

    #[test]
    fn damaged_bytes_are_messages_or_errors(mut wire in proptest::collection::vec(any::<u8>(), 0..200), short in any::<bool>()) {
        // Lengths that fit what is there get further than random ones.
        if short && wire.len() > 8 {
            let head = (wire.len() - 8) as u32;
            wire[..4].copy_from_slice(&head.to_le_bytes());
            wire[4..8].copy_from_slice(&[0; 4]);
        }
        let _ = read_message::<Ask>(&mut wire.as_slice());
        let _ = read_message::<Answer>(&mut wire.as_slice());
    }

    #[test]
    fn one_wrong_byte_in_a_head_never_panics(ask in ask(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut wire = Vec::new();
        write_message(&mut wire, &ask, b"body").unwrap();
        let at = at.index(wire.len());
        wire[at] = byte;
        let _ = read_message::<Ask>(&mut wire.as_slice());
    }

    #[test]
    fn a_packed_block_is_its_bytes_again(bytes in proptest::collection::vec(0u8..4, 0..5000)) {
        let path = FarPath::new("a").unwrap();
        let (packed, body) = pack(&bytes);
        let digest = crate::digest_of(&bytes);
        prop_assert_eq!(unpack(&path, body.to_vec(), packed, &digest).unwrap(), bytes);
    }
}

#[test]
fn lengths_that_nobody_would_send_take_no_memory() {
    for lengths in [[u32::MAX, 0], [2, u32::MAX]] {
        let mut wire = Vec::new();
        lengths.iter().for_each(|length: &u32| wire.extend(length.to_le_bytes()));
        wire.extend(b"{}");
        assert!(matches!(read_message::<Ask>(&mut wire.as_slice()), Err(WireError::TooLong { .. })));
    }
    let bomb = zstd::bulk::compress(&vec![0; 8 * BLOCK], 1).unwrap();
    let path = FarPath::new("a").unwrap();
    assert!(matches!(unpack(&path, bomb, true, &Digest([0; 32])), Err(WireError::Damaged { .. })));
}

#[test]
fn a_file_may_be_more_private_than_it_is_asked_for_and_not_less() {
    let stamp = |private| Stamp { length: 1, seconds: 2, nanos: 3, executable: false, private };
    assert!(stamp(false).is_met_by(&stamp(false)) && stamp(false).is_met_by(&stamp(true)));
    assert!(stamp(true).is_met_by(&stamp(true)) && !stamp(true).is_met_by(&stamp(false)));
    assert!(!stamp(false).is_met_by(&Stamp { nanos: 4, ..stamp(true) }));
}

#[test]
fn what_is_not_known_is_refused() {
    for head in [
        r#"{"ask":"format_disk"}"#,
        r#"{"ask":"lock","more":1}"#,
        r#"{"ask":"begin","path":"../x","private":false}"#,
        "[]",
    ] {
        let mut wire = Vec::new();
        wire.extend((head.len() as u32).to_le_bytes());
        wire.extend([0; 4]);
        wire.extend(head.as_bytes());
        assert!(matches!(read_message::<Ask>(&mut wire.as_slice()), Err(WireError::Head { .. })), "{head}");
    }
}
