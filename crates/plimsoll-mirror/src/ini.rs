//! The form of the provider's own credential files: sections in brackets, `key = value` lines, comments.
//!
//! Pure. An indented line belongs to the key above it (nested settings); none of those matters here.

use std::collections::BTreeMap;

/// The keys of one section of `text`, if it has that section. Later values outweigh earlier ones.
pub(crate) fn section(text: &str, name: &str) -> Option<BTreeMap<String, String>> {
    let mut found: Option<BTreeMap<String, String>> = None;
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with([' ', '\t']) {
            continue;
        }
        let line = line.trim_end();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(head) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(head, _)| head.trim()) {
            inside = head == name;
            if inside {
                found.get_or_insert_default();
            }
            continue;
        }
        if let (true, Some((key, value))) = (inside, line.split_once('=')) {
            let value = value.split(" #").next().unwrap_or_default().trim();
            found.get_or_insert_default().insert(key.trim().to_ascii_lowercase(), value.to_string());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# mine\n[default]\naws_access_key_id = AK1\naws_secret_access_key=s/1+=\n\n\
        [ work ]\r\nAWS_ACCESS_KEY_ID = AK2 # old\r\ns3 =\n  addressing_style = path\nregion = eu-north-1\n; end\n";

    #[test]
    fn a_section_has_its_keys_and_no_others() {
        let default = section(FILE, "default").unwrap();
        assert_eq!(default["aws_access_key_id"], "AK1");
        assert_eq!(default["aws_secret_access_key"], "s/1+=");
        assert_eq!(default.len(), 2);
    }

    #[test]
    fn line_ends_case_comments_and_nested_settings_do_not_disturb() {
        let work = section(FILE, "work").unwrap();
        assert_eq!((work["aws_access_key_id"].as_str(), work["region"].as_str()), ("AK2", "eu-north-1"));
        assert!(!work.contains_key("addressing_style"));
    }

    #[test]
    fn a_section_that_is_not_there_is_nothing() {
        assert_eq!(section(FILE, "other"), None);
        assert_eq!(section("key = value\n", "default"), None);
    }
}
