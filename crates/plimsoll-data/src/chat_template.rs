//! The chat template of a model: a conversation as the text that the model was, or will be, trained on.
//!
//! The environment is that of Hugging Face's templates: blocks are trimmed, `raise_exception`, `tojson`, `break` and
//! `continue`, Python's methods of strings, `{% generation %}`. There is no clock: `strftime_now` exists only where the
//! caller gave a date. Invariant: rendering is a function of template, special tokens, date and messages. It knows no
//! tokens and no files.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Enumerator, Kwargs, Object, Value, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

use crate::date::Date;
use crate::generation_tags::{CALL, as_calls};
use crate::messages::ASSISTANT;
use crate::prepared::digest;
use crate::{DataError, Message};

/// Macros and blocks inside each other, at most, so that a template cannot exhaust a loader thread's stack.
const RECURSION: usize = 60;

/// What is used where a model has no template of its own. The answer with its end is what is trained.
const PLAIN: &str = "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}\
Assistant:{% generation %} {{ message.content }}{{ eos_token }}{% endgeneration %}\n\n\
{% elif message.role == 'system' %}{{ message.content }}\n\n\
{% else %}User: {{ message.content }}\n\
{% endif %}{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}";

/// A compiled template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: BTreeMap<String, String>,
    text_bytes: usize,
    generation: bool,
    built_in: bool,
    fingerprint: u64,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("text_bytes", &self.text_bytes)
            .field("generation", &self.generation)
            .field("built_in", &self.built_in)
            .finish_non_exhaustive()
    }
}

/// The beginning of a rendered conversation.
pub(crate) struct Rendered {
    pub text: String,
    /// What the template marked as the assistant's, in bytes, ascending; it may go on behind the text.
    marked: Vec<(usize, usize)>,
    /// Nothing is missing at the end.
    pub whole: bool,
}

impl ChatTemplate {
    /// Compiles `text`. `special_tokens` are the names that templates use (`bos_token`, `eos_token`, ...) and their text.
    pub fn new(text: &str, special_tokens: &BTreeMap<String, String>) -> Result<ChatTemplate, DataError> {
        let bad = |e: Error| DataError::BadTemplate { reason: reason(&e) };
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(bad)?;
        environment.set_syntax(syntax);
        environment.set_recursion_limit(RECURSION);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", crate::template_json::tojson);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        let names = special_tokens.iter().flat_map(|(name, token)| [name.as_str(), token]);
        let said: Vec<&str> = std::iter::once(text).chain(names).collect();
        let fingerprint = digest(said.join("\0").as_bytes());
        let (text, generation) = as_calls(text);
        let text_bytes = text.len();
        environment.add_template_owned("chat", text).map_err(bad)?;
        Ok(ChatTemplate {
            environment,
            special_tokens: special_tokens.clone(),
            text_bytes,
            generation,
            built_in: false,
            fingerprint,
        })
    }

    /// The plain template, for models that have none.
    pub fn plain(special_tokens: &BTreeMap<String, String>) -> Result<ChatTemplate, DataError> {
        Ok(ChatTemplate { built_in: true, ..ChatTemplate::new(PLAIN, special_tokens)? })
    }

    /// The same, with `strftime_now` telling this date, at midnight.
    pub fn with_date(mut self, date: Date) -> ChatTemplate {
        self.fingerprint ^= digest(format!("{date:?}").as_bytes());
        self.environment.add_function("strftime_now", move |format: String| date.format(&format));
        self
    }

    /// Tells it from others: of its text, the special tokens and the date.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// It is the plain one.
    pub fn is_built_in(&self) -> bool {
        self.built_in
    }

    /// It marks the assistant's part by `{% generation %}`.
    pub fn marks_generation(&self) -> bool {
        self.generation
    }

    /// Heap of the compiled template, in bytes, at most: instructions with their spans, names and constants. Measured with
    /// `cargo test --test heap -- --nocapture`: 33 KB for 250 bytes of template, 541 KB for 19 KB.
    pub fn heap_bytes(&self) -> u64 {
        (64 << 10) + 64 * self.text_bytes as u64
    }

    /// The text of a conversation, with the beginning of an answer where `add_generation_prompt`.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, DataError> {
        let messages = values(messages);
        self.render_values(&messages, add_generation_prompt, usize::MAX).map(|rendered| rendered.text)
    }

    /// The first `limit` bytes or so of a conversation; where the template marks it, with the assistant's part.
    pub(crate) fn render_beginning(&self, messages: &[Message], limit: usize) -> Result<Rendered, DataError> {
        self.render_values(&values(messages), false, limit)
    }

    /// Where the assistant speaks in the first `end` bytes of what was `rendered` from `messages`, in bytes, ascending.
    /// Without marks each of its messages costs two renderings of all before it, so `end` should be no more than needed.
    pub(crate) fn spans(
        &self,
        messages: &[Message],
        rendered: &Rendered,
        end: usize,
    ) -> Result<Vec<(usize, usize)>, DataError> {
        if self.generation {
            let marked = rendered.marked.iter().map(|&(from, to)| (from, to.min(end)));
            return Ok(marked.filter(|(from, to)| from < to).collect());
        }
        let values = values(messages);
        let mut spans = Vec::new();
        for (i, _) in messages.iter().enumerate().filter(|(_, m)| m.role == ASSISTANT) {
            let before = self.render_values(&values[..i], true, end)?;
            if !before.whole || before.text.len() >= end {
                break;
            }
            let after = self.render_values(&values[..=i], false, end)?;
            if !after.text.starts_with(&before.text) || !rendered.text.starts_with(&after.text) {
                return Err(DataError::PrefixesDoNotNest { message: i + 1 });
            }
            spans.push((before.text.len(), after.text.len()));
        }
        Ok(spans)
    }

    fn render_values(&self, messages: &[Value], prompt: bool, limit: usize) -> Result<Rendered, DataError> {
        let tracker = Arc::new(Tracker::default());
        let mut context: BTreeMap<&str, Value> = BTreeMap::new();
        for (name, token) in &self.special_tokens {
            context.insert(name, Value::from(token.as_str()));
        }
        context.insert("messages", Value::from(messages.to_vec()));
        context.insert("tools", Value::from(()));
        context.insert("documents", Value::from(()));
        context.insert("add_generation_prompt", Value::from(prompt));
        context.insert(CALL, Value::from_dyn_object(tracker.clone()));
        let mut page = Page { bytes: Vec::new(), limit, full: false, tracker: &tracker };
        let failed = |e: Error| DataError::NotRendered { reason: reason(&e) };
        let template = self.environment.get_template("chat").map_err(failed)?;
        let done = template.render_captured_to(Value::from(context), &mut page).map(drop);
        let Page { bytes, full, .. } = page;
        if let (Err(error), false) = (done, full) {
            return Err(failed(error));
        }
        // The last character may have been cut.
        let text = String::from_utf8(bytes).unwrap_or_else(|e| {
            let valid = e.utf8_error().valid_up_to();
            let mut bytes = e.into_bytes();
            bytes.truncate(valid);
            String::from_utf8(bytes).unwrap_or_default()
        });
        let marked = std::mem::take(&mut *tracker.spans.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Rendered { text, marked, whole: !full })
    }
}

/// What an engine's error says, with its line, and without the engine's name for the kind where a template spoke itself.
fn reason(error: &Error) -> String {
    let said = error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    let said = match (error.kind(), error.detail()) {
        (ErrorKind::InvalidOperation, Some(detail)) => detail.to_string(),
        _ => said,
    };
    match error.line() {
        Some(line) => format!("{said} (line {line} of the template)"),
        None => said,
    }
}

/// Where a template writes to: so many bytes, then an error stops it.
struct Page<'a> {
    bytes: Vec<u8>,
    limit: usize,
    full: bool,
    tracker: &'a Tracker,
}

impl std::io::Write for Page<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let room = (self.limit - self.bytes.len()).min(bytes.len());
        self.bytes.extend_from_slice(&bytes[..room]);
        self.tracker.written.fetch_add(room, Ordering::Relaxed);
        if room < bytes.len() {
            self.full = true;
            return Err(std::io::Error::other("the page is full"));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Called by `{% generation %}`: writes what is inside, and remembers where.
#[derive(Debug, Default)]
struct Tracker {
    written: AtomicUsize,
    spans: Mutex<Vec<(usize, usize)>>,
}

impl Object for Tracker {
    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let (kwargs,): (Kwargs,) = from_args(args)?;
        let inside: Value = kwargs.get::<Value>("caller")?.call(state, &[])?;
        let start = self.written.load(Ordering::Relaxed);
        let length = inside.as_str().map_or(0, str::len);
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).push((start, start + length));
        Ok(inside)
    }
}

/// A message as templates see it: a mapping of two keys.
#[derive(Debug)]
struct Seen {
    role: Value,
    content: Value,
}

impl Object for Seen {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "role" => Some(self.role.clone()),
            "content" => Some(self.content.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Str(&["role", "content"])
    }
}

fn values(messages: &[Message]) -> Vec<Value> {
    let value = |m: &Message| {
        Value::from_object(Seen { role: Value::from(m.role.as_str()), content: Value::from(m.content.as_str()) })
    };
    messages.iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> BTreeMap<String, String> {
        [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(k, v)| (k.to_string(), v.to_string())).into()
    }

    fn render(text: &str) -> Result<String, DataError> {
        let messages = [Message::new("user", " hi "), Message::new("assistant", "yo")];
        ChatTemplate::new(text, &tokens())?.render(&messages, false)
    }

    fn marked(template: &str, messages: &[Message], limit: usize) -> Vec<String> {
        let template = ChatTemplate::new(template, &tokens()).unwrap();
        let rendered = template.render_beginning(messages, limit).unwrap();
        let spans = template.spans(messages, &rendered, rendered.text.len()).unwrap();
        spans.iter().map(|&(a, b)| rendered.text[a..b].to_string()).collect()
    }

    #[test]
    fn blocks_are_trimmed_and_python_s_methods_work() {
        let text = "{% for m in messages %}\n    {% if loop.first %}\n{{ bos_token }}{% endif %}\n\
                    {{ m['content'].strip() | upper }},{{ m.role.startswith('us') }}|{% endfor %}";
        let got = render(text).unwrap().to_lowercase();
        assert_eq!(got, "<s>hi,true|yo,false|");
        assert_eq!(render("{{ 'a,b'.split(',')[1] }}{{ messages[1:] | length }}").unwrap(), "b1");
        assert_eq!(render("{% for m in messages %}{% continue %}x{% endfor %}{% if tools %}t{% endif %}").unwrap(), "");
    }

    #[test]
    fn errors_of_templates_say_what_the_template_said() {
        let e = render("\n{{ raise_exception('roles must alternate') }}").unwrap_err().to_string();
        assert_eq!(e, "the chat template failed: roles must alternate (line 2 of the template)");
        assert!(matches!(render("{% if %}"), Err(DataError::BadTemplate { .. })));
        assert!(matches!(render("{{ strftime_now('%Y') }}"), Err(DataError::NotRendered { .. })));
    }

    #[test]
    fn the_date_is_the_caller_s() {
        let template = ChatTemplate::new("{{ strftime_now('%d %b %Y') }}", &tokens()).unwrap();
        let date = Date { year: 2024, month: 7, day: 26 };
        assert_eq!(template.with_date(date).render(&[], false).unwrap(), "26 Jul 2024");
    }

    #[test]
    fn marked_generation_is_found_and_cut_with_the_text() {
        let template = "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }};\
                        {% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
        let talk = [Message::new("user", "a"), Message::new("assistant", "bé"), Message::new("assistant", "c")];
        assert_eq!(marked(template, &talk, 1000), ["bé;", "c;"]);
        assert_eq!(marked(template, &talk, 18), ["b"], "half a character is left out");
        assert_eq!(marked(template, &talk, 6), [""; 0]);
    }

    #[test]
    fn unmarked_generation_is_what_follows_the_prompt() {
        let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}\
                        {% if add_generation_prompt %}<assistant>{% endif %}";
        let talk = [
            Message::new("user", "a"),
            Message::new("assistant", "b"),
            Message::new("user", "c"),
            Message::new("assistant", "d"),
        ];
        assert_eq!(marked(template, &talk, 1000), ["b</>", "d</>"]);
        assert_eq!(marked(template, &talk, 22), ["b"]);
    }

    #[test]
    fn a_template_that_rewrites_the_past_is_refused() {
        let template = "{% for m in messages %}{{ m.role }}{% if loop.last %}!{% endif %}{{ m.content }}{% endfor %}";
        let talk = [Message::new("user", "a"), Message::new("assistant", "b"), Message::new("user", "c")];
        let template = ChatTemplate::new(template, &tokens()).unwrap();
        let rendered = template.render_beginning(&talk, 1000).unwrap();
        let e = template.spans(&talk, &rendered, rendered.text.len()).err().unwrap();
        assert!(matches!(e, DataError::PrefixesDoNotNest { message: 2 }), "{e}");
    }

    #[test]
    fn the_plain_template_trains_answers_with_their_end() {
        let template = ChatTemplate::plain(&tokens()).unwrap();
        let talk = [Message::new("system", "Be kind."), Message::new("user", "hi"), Message::new("assistant", "yo")];
        let text = template.render(&talk, false).unwrap();
        assert_eq!(text, "<s>Be kind.\n\nUser: hi\nAssistant: yo</s>\n");
        assert_eq!(marked(PLAIN, &talk, 1000), [" yo</s>"]);
        assert_eq!(template.render(&talk[..2], true).unwrap(), "<s>Be kind.\n\nUser: hi\nAssistant:");
        assert!(template.is_built_in());
    }

    #[test]
    fn a_template_without_end_stops_in_a_small_stack() {
        let text = "{% macro deep(n) %}{{ deep(n + 1) }}{% endmacro %}{{ deep(0) }}";
        let run = move || render(text).unwrap_err().to_string();
        let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap();
        let e = thread.join().unwrap();
        assert!(e.contains("recursion"), "{e}");
    }
}
