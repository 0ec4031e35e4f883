//! Conversations: a list of messages, as many files write it, in one form.
//!
//! Invariant: a conversation that passed has at least one message, each with a known role and a text; it is carried as
//! JSON, a list of `{"role", "content"}`. Other keys are left behind. It knows no file, no template and no tokens.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::jsonl_row::{Cell, name_what_is_met};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` and so on.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A message of `role` that says `content`.
    pub fn new(role: &str, content: &str) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

/// Who it is that is trained.
pub(crate) const ASSISTANT: &str = "assistant";

/// The roles that templates know, for messages to people.
const ROLES: &str = "a role (system, developer, user, assistant, tool)";

/// The usual name of a role, where `name` is one of its names.
fn role(name: &str) -> Option<&'static str> {
    Some(match name {
        "system" => "system",
        "developer" => "developer",
        "user" | "human" => "user",
        "assistant" | "gpt" | "chatgpt" | "bot" | "model" => ASSISTANT,
        "tool" => "tool",
        "function" => "function",
        _ => return None,
    })
}

/// What is wrong with one message, or with the list (then without a number).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MessageFault {
    /// Which message, from 1.
    pub number: Option<usize>,
    pub expected: &'static str,
    pub found: String,
}

/// Writes a conversation, message by message.
pub(crate) struct ConversationWriter<'a> {
    out: &'a mut String,
    messages: usize,
}

impl<'a> ConversationWriter<'a> {
    pub fn new(out: &'a mut String) -> ConversationWriter<'a> {
        out.clear();
        ConversationWriter { out, messages: 0 }
    }

    pub fn push(&mut self, name: &str, content: &str) -> Result<(), MessageFault> {
        let number = Some(self.messages + 1);
        let role = role(name).ok_or_else(|| MessageFault { number, expected: ROLES, found: format!("`{name}`") })?;
        self.out.push_str(if self.messages == 0 { "[{\"role\":\"" } else { ",{\"role\":\"" });
        self.out.push_str(role);
        self.out.push_str("\",\"content\":");
        push_json(content, self.out);
        self.out.push('}');
        self.messages += 1;
        Ok(())
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    pub fn finish(self) -> Result<(), MessageFault> {
        if self.messages == 0 {
            return Err(MessageFault { number: None, expected: "at least one message", found: "none".into() });
        }
        self.out.push(']');
        Ok(())
    }
}

/// A question and its answer as a conversation.
pub(crate) fn from_pair(question: &[&str], answer: &str, out: &mut String) -> Result<(), MessageFault> {
    let mut writer = ConversationWriter::new(out);
    let parts: Vec<&str> = question.iter().copied().filter(|part| !part.is_empty()).collect();
    writer.push("user", &parts.join("\n\n"))?;
    writer.push(ASSISTANT, answer)?;
    writer.finish()
}

/// `text` as a JSON string.
fn push_json(text: &str, out: &mut String) {
    // Writing to a string cannot fail; the clean stretches between escapes are copied whole.
    struct Into<'a>(&'a mut String);
    impl std::io::Write for Into<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.push_str(std::str::from_utf8(bytes).map_err(std::io::Error::other)?);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let written = serde_json::to_writer(Into(out), text);
    debug_assert!(written.is_ok());
}

/// What a cell of messages was instead.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotMessages {
    /// Something that is neither a list nor text with a list.
    Other(&'static str),
    Fault(MessageFault),
}

/// A cell of messages: a list of objects, or a text that holds such a list as JSON.
pub(crate) struct MessagesCell<'a>(pub &'a mut String);

impl<'de> DeserializeSeed<'de> for MessagesCell<'_> {
    type Value = Option<NotMessages>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MessagesCell<'_> {
    type Value = Option<NotMessages>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of messages")
    }

    name_what_is_met!(Self::Value, |found| Some(NotMessages::Other(found)), no_list);

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(from_json(text, self.0))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Some(NotMessages::Other("an object")))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut writer = ConversationWriter::new(self.0);
        let mut fault = None;
        let (mut name, mut content) = (String::new(), String::new());
        while let Some(found) =
            seq.next_element_seed(OneMessage { number: writer.messages + 1, name: &mut name, content: &mut content })?
        {
            fault = fault.or(found);
            // What follows a fault is read to its end, and left.
            if fault.is_none() {
                fault = writer.push(&name, &content).err();
            }
        }
        Ok(fault.or_else(|| writer.finish().err()).map(NotMessages::Fault))
    }
}

/// The messages in `text`, which is JSON.
pub(crate) fn from_json(text: &str, out: &mut String) -> Option<NotMessages> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let list = ListCell(out).deserialize(&mut parser).and_then(|fault| parser.end().map(|()| fault));
    list.unwrap_or(Some(NotMessages::Other("a string that is not JSON")))
}

/// As [`MessagesCell`], but a text in it is no list any more.
struct ListCell<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for ListCell<'_> {
    type Value = Option<NotMessages>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ListCell<'_> {
    type Value = Option<NotMessages>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of messages")
    }

    name_what_is_met!(Self::Value, |found| Some(NotMessages::Other(found)), no_list);

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(Some(NotMessages::Other("a string in a string")))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        MessagesCell(self.0).visit_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        MessagesCell(self.0).visit_seq(seq)
    }
}

/// One element of the list: role and content, under either pair of names.
struct OneMessage<'a> {
    number: usize,
    name: &'a mut String,
    content: &'a mut String,
}

impl OneMessage<'_> {
    fn fault(&self, expected: &'static str, found: impl Into<String>) -> Option<MessageFault> {
        Some(MessageFault { number: Some(self.number), expected, found: found.into() })
    }
}

impl<'de> DeserializeSeed<'de> for OneMessage<'_> {
    type Value = Option<MessageFault>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for OneMessage<'_> {
    type Value = Option<MessageFault>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    name_what_is_met!(Self::Value, |found: &'static str| {
        Some(MessageFault { number: None, expected: "messages that are objects", found: found.into() })
    });

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(self.fault("an object with `role` and `content`", "a string"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut seen = [false; 2];
        let mut fault = None;
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            let (which, into) = match key.as_ref() {
                "role" | "from" => (0, &mut *self.name),
                "content" | "value" => (1, &mut *self.content),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            let found = map.next_value_seed(Cell(into))?;
            let expected = ["a string as its role", "a string as its content"][which];
            if let Some(found) = found {
                fault = fault.or_else(|| self.fault(expected, found));
            } else if seen[which] {
                fault = fault.or_else(|| self.fault("each key once", format!("`{key}` twice")));
            }
            seen[which] = true;
        }
        Ok(fault.or_else(|| match seen {
            [true, true] => None,
            [false, _] => self.fault("a key `role` (or `from`)", "none"),
            _ => self.fault("a key `content` (or `value`)", "none"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(json: &str) -> Result<String, NotMessages> {
        let mut out = String::from("left over");
        let mut parser = serde_json::Deserializer::from_str(json);
        match MessagesCell(&mut out).deserialize(&mut parser).unwrap() {
            Some(fault) => Err(fault),
            None => Ok(out),
        }
    }

    fn fault(json: &str) -> String {
        match list(json).unwrap_err() {
            NotMessages::Other(found) => found.into(),
            NotMessages::Fault(f) => format!("{:?} {} / {}", f.number, f.expected, f.found),
        }
    }

    #[test]
    fn both_pairs_of_names_and_json_in_a_string_give_one_form() {
        let expected = r#"[{"role":"user","content":"a \"b\"\n"},{"role":"assistant","content":"é"}]"#;
        let openai = r#"[{"role":"user","content":"a \"b\"\n","x":[1]},{"content":"\u00e9","role":"assistant"}]"#;
        let sharegpt = r#"[{"from":"human","value":"a \"b\"\n"},{"from":"gpt","value":"é","weight":null}]"#;
        assert_eq!(list(openai).unwrap(), expected);
        assert_eq!(list(sharegpt).unwrap(), expected);
        assert_eq!(list(&serde_json::to_string(openai).unwrap()).unwrap(), expected);
        let back: Vec<Message> = serde_json::from_str(expected).unwrap();
        assert_eq!(back, [Message::new("user", "a \"b\"\n"), Message::new("assistant", "é")]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_message() {
        assert_eq!(fault("[]"), "None at least one message / none");
        assert_eq!(fault("3"), "a number");
        assert_eq!(fault("null"), "null");
        assert_eq!(fault(r#""[1""#), "a string that is not JSON");
        assert_eq!(fault("[1]"), "None messages that are objects / a number");
        assert!(fault(r#"[{"role":"wizard","content":"x"}]"#).starts_with("Some(1) a role"));
        assert_eq!(
            fault(r#"[{"role":"user","content":"x"},{"role":"assistant","content":null}]"#),
            "Some(2) a string as its content / null"
        );
        assert_eq!(fault(r#"[{"role":7,"content":"x"}]"#), "Some(1) a string as its role / a number");
        assert_eq!(fault(r#"[{"role":"user"}]"#), "Some(1) a key `content` (or `value`) / none");
        assert_eq!(fault(r#"[{"role":"user","role":"user","content":""}]"#), "Some(1) each key once / `role` twice");
    }

    #[test]
    fn an_empty_input_leaves_no_blank_lines() {
        let mut out = String::new();
        from_pair(&["do", ""], "done", &mut out).unwrap();
        assert_eq!(out, r#"[{"role":"user","content":"do"},{"role":"assistant","content":"done"}]"#);
        from_pair(&["do", "this"], "done", &mut out).unwrap();
        assert!(out.contains(r#""do\n\nthis""#));
    }
}
