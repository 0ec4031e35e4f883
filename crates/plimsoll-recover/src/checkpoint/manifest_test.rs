//! A test for each way a manifest can lie.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn sample() -> Manifest {
    let facts = json!({"plan": "a1", "best": 0.1 + 0.2, "cursor": {"file": 3, "row": u64::MAX}});
    let file = FileFacts { bytes: Bytes(12), crc32: 0xdead_beef };
    Manifest::new(7, BTreeMap::from([("weights.safetensors".to_string(), file)]), facts)
}

fn signed(rest: &str) -> Vec<u8> {
    format!("{HEAD}{:08x}\",\n{rest}", crc32fast::hash(rest.as_bytes())).into_bytes()
}

fn refusal(text: &[u8]) -> RecoverError {
    Manifest::parse(text, Path::new("step-7/manifest.json")).unwrap_err()
}

#[test]
fn a_manifest_is_read_back_exactly_floats_included() {
    let text = sample().to_text().unwrap();
    assert_eq!(Manifest::parse(text.as_bytes(), Path::new("m")).unwrap(), sample());
    let whole: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(whole["step"], 7);
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    let text = sample().to_text().unwrap().into_bytes();
    for place in 0..text.len() {
        for bit in 0..8 {
            let mut broken = text.clone();
            broken[place] ^= 1 << bit;
            refusal(&broken);
        }
    }
}

#[test]
fn a_cut_anywhere_is_found() {
    let text = sample().to_text().unwrap().into_bytes();
    for length in 0..text.len() {
        refusal(&text[..length]);
    }
}

#[test]
fn a_later_format_is_named_before_its_fields_are_read() {
    let error = refusal(&signed("\"format\": 2, \"shards\": []}"));
    assert!(matches!(error, RecoverError::ManifestFormat { expected: 1, found: 2, .. }), "{error}");
}

#[test]
fn a_manifest_cannot_lead_out_of_its_folder() {
    for name in ["../weights", "/etc/passwd", "", ".", "..", "manifest.json", "a/b", ".hidden"] {
        let files = json!({name: {"bytes": 1, "crc32": 1}});
        let rest = format!("\"format\": 1, \"step\": 7, \"facts\": null, \"files\": {files}}}");
        let error = refusal(&signed(&rest));
        assert!(matches!(&error, RecoverError::FileName { name: found } if found == name), "{error}");
    }
}

#[test]
fn an_error_names_line_and_column() {
    let error = refusal(&signed("\"format\": 1,\n\"step\": -1}"));
    assert!(matches!(error, RecoverError::ManifestText { line: 3, .. }), "{error}");
}

#[test]
fn what_is_too_long_is_not_read() {
    let error = refusal(&vec![b' '; LIMIT.0 as usize + 1]);
    assert!(matches!(error, RecoverError::ManifestTooLong { .. }), "{error}");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(text in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Manifest::parse(&text, Path::new("m"));
    }

    #[test]
    fn arbitrary_text_with_a_true_checksum_never_panics(rest in "[\\PC\\n]{0,200}") {
        let _ = Manifest::parse(&signed(&rest), Path::new("m"));
    }

    #[test]
    fn arbitrary_fields_with_a_true_checksum_never_panic(
        format in any::<i64>(), step in "[0-9.eE+-]{0,24}", name in "\\PC{0,20}", bytes in any::<i128>(), deep in 0usize..400,
    ) {
        let facts = "[".repeat(deep) + &"]".repeat(deep);
        let name = json!(name);
        let rest = format!(
            "\"format\": {format}, \"step\": {step}, \"files\": {{{name}: {{\"bytes\": {bytes}, \"crc32\": 0}}}}, \"facts\": {facts}}}"
        );
        let _ = Manifest::parse(&signed(&rest), Path::new("m"));
    }

    #[test]
    fn any_manifest_is_read_back(step: u64, bytes: u64, crc32: u32, name in "[a-z][a-z0-9._-]{0,20}", best: f64) {
        let best = if best.is_finite() { best } else { 0.0 };
        let files = BTreeMap::from([(name, FileFacts { bytes: Bytes(bytes), crc32 })]);
        let manifest = Manifest::new(step, files, json!({ "best": best }));
        let text = manifest.to_text().unwrap();
        prop_assert_eq!(Manifest::parse(text.as_bytes(), Path::new("m")).unwrap(), manifest);
    }
}
