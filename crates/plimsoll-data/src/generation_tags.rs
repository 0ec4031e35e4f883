//! `{% generation %}` in a template's text, rewritten as a call block, which the template engine knows.
//!
//! Invariant: nothing else of the text changes, nor do the signs of whitespace control, so the text around is trimmed as
//! it would be.

/// The name that is called.
pub(crate) const CALL: &str = "plimsoll_generation";

/// The text with call blocks, and whether there was a tag at all.
pub(crate) fn as_calls(text: &str) -> (String, bool) {
    let mut out = String::with_capacity(text.len() + 64);
    let mut rest = text;
    let mut any = false;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, behind) = tag.split_at(end + 2);
        let inner = &tag[2..tag.len() - 2];
        let open = if inner.starts_with(['-', '+']) { &inner[..1] } else { "" };
        let inner = &inner[open.len()..];
        let close = if inner.ends_with(['-', '+']) { &inner[inner.len() - 1..] } else { "" };
        match inner[..inner.len() - close.len()].trim() {
            "generation" => {
                any = true;
                out.push_str(&format!("{{%{open} call {CALL}() {close}%}}"));
            }
            "endgeneration" => out.push_str(&format!("{{%{open} endcall {close}%}}")),
            _ => out.push_str(tag),
        }
        rest = behind;
    }
    out.push_str(rest);
    (out, any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_become_calls_and_keep_their_signs() {
        let (text, any) = as_calls("a{%- generation -%}b{% endgeneration +%}{% if generation %}c");
        assert_eq!(text, format!("a{{%- call {CALL}() -%}}b{{% endcall +%}}{{% if generation %}}c"));
        assert!(any);
        for same in ["{% if x %}", "{%", "{%%}", "{%-%}", "no tags", "generation"] {
            assert_eq!(as_calls(same), (same.to_string(), false));
        }
    }
}
