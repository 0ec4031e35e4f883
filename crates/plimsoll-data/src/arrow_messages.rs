//! The messages of an Arrow IPC file or stream, one after the other: its schema, then dictionaries and record batches.
//!
//! Invariant: a description is read whole and verified, a body never; what a message says lies inside the file. A file has them where
//! its footer says, a stream one behind the other; the first bytes tell which it is. It knows nothing of columns.

use std::path::Path;
use std::sync::Arc;
use std::vec::IntoIter;

use arrow_ipc::{Message, MetadataVersion, root_as_footer, root_as_message};

use crate::DataError;
use crate::arrow_shape::Walked;
use crate::input::{Input, Origin};

const MAGIC: &[u8; 6] = b"ARROW1";
/// A file ends with its footer, the footer's length and the magic.
const FILE_END: u64 = 10;
/// The first version of Feather, which is another format.
const FEATHER_1: &[u8; 4] = b"FEA1";
/// Longest footer or description of a message, in bytes.
const MAX_METADATA: u64 = 64 << 20;
/// What a message begins with; before version 0.15 it began with its length.
const CONTINUATION: u32 = u32::MAX;

/// A message: its description, and where its body lies.
pub(crate) struct Head {
    metadata: Vec<u8>,
    pub body: u64,
    pub body_bytes: u64,
    /// `message 3`.
    pub place: String,
}

/// The messages behind the schema.
pub(crate) struct Messages<'a> {
    path: &'a Path,
    pub file: Arc<Input>,
    pub bytes: u64,
    schema: Described,
    /// Of a file: where they lie.
    listed: Option<IntoIter<u64>>,
    /// Of a stream: where the next one begins.
    at: u64,
    count: u64,
}

/// What has the schema.
enum Described {
    Footer(Vec<u8>),
    Message(Head),
}

impl<'a> Messages<'a> {
    /// Reads footer or schema.
    pub fn open(origin: &'a Origin) -> Result<Messages<'a>, DataError> {
        let (path, file) = (origin.path(), Arc::new(origin.open()?));
        let bytes = file.len()?;
        let nothing = Described::Footer(Vec::new());
        let mut messages = Messages { path, file, bytes, schema: nothing, listed: None, at: 0, count: 0 };
        let mut start = [0; 6];
        let known = bytes.min(6) as usize;
        messages.file.read_exact_at(&mut start[..known], 0)?;
        if start[..4] == *FEATHER_1 {
            let reason =
                "expected version 2 of Feather, found version 1; write it anew (`pyarrow.feather.write_feather`)";
            return Err(messages.bad("start", reason));
        }
        if start == *MAGIC {
            messages.read_footer()?;
        } else {
            let head = messages.next()?;
            let head = head.ok_or_else(|| messages.bad("start", "expected a schema, found the end"))?;
            messages.schema = Described::Message(head);
        }
        Ok(messages)
    }

    fn bad(&self, place: &str, reason: impl Into<String>) -> DataError {
        DataError::BadArrow { path: self.path.into(), place: place.into(), reason: reason.into() }
    }

    fn read_footer(&mut self) -> Result<(), DataError> {
        let mut end = [0; FILE_END as usize];
        let start = self.bytes.checked_sub(FILE_END).ok_or_else(|| self.bad("end", "expected a footer, found none"))?;
        self.file.read_exact_at(&mut end, start)?;
        let length = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
        if end[4..] != *MAGIC {
            return Err(self.bad("end", "expected a footer, found none; the file is not whole"));
        }
        let footer = start.checked_sub(length).filter(|_| length <= MAX_METADATA).ok_or_else(|| {
            self.bad("end", format!("expected a footer before byte {start}, found one of {length} bytes"))
        })?;
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, footer)?;
        let parsed = root_as_footer(&bytes).map_err(|e| self.bad("footer", e.to_string()))?;
        let blocks = parsed.dictionaries().into_iter().flatten().chain(parsed.recordBatches().into_iter().flatten());
        let places: Result<Vec<u64>, _> = blocks.map(|block| u64::try_from(block.offset())).collect();
        let places = places.map_err(|_| self.bad("footer", "a batch at a negative place"))?;
        self.listed = Some(places.into_iter());
        self.schema = Described::Footer(bytes);
        Ok(())
    }

    /// The schema, walked.
    pub fn walked(&self) -> Result<Walked<'_>, DataError> {
        let bad = |reason: String| self.bad("schema", reason);
        let (schema, version) = match &self.schema {
            Described::Footer(bytes) => {
                let footer = root_as_footer(bytes).map_err(|e| bad(e.to_string()))?;
                (footer.schema(), footer.version())
            }
            Described::Message(head) => {
                let message = head.message().map_err(&bad)?;
                (message.header_as_schema(), message.version())
            }
        };
        let schema = schema.ok_or_else(|| bad("expected a schema, found none".into()))?;
        if !(MetadataVersion::V4..=MetadataVersion::V5).contains(&version) {
            return Err(bad(format!("expected version 4 or 5 of the format, found {version:?}")));
        }
        Walked::new(schema, version).map_err(bad)
    }

    /// The next message, or `None` behind the last one.
    pub fn next(&mut self) -> Result<Option<Head>, DataError> {
        self.count += 1;
        let Some(places) = &mut self.listed else {
            let head = self.message(self.at)?;
            if let Some(head) = &head {
                self.at = head.body + head.body_bytes;
            }
            return Ok(head);
        };
        let Some(at) = places.next() else { return Ok(None) };
        let head = self.message(at)?;
        head.map(Some).ok_or_else(|| self.bad(&self.place(), "expected a message, found the end"))
    }

    fn place(&self) -> String {
        format!("message {}", self.count)
    }

    /// The message at byte `at`; `None` where the stream ends.
    fn message(&self, at: u64) -> Result<Option<Head>, DataError> {
        let place = self.place();
        let short = |expected: &str| {
            self.bad(&place, format!("expected {expected} behind byte {at}, found a file of {} bytes", self.bytes))
        };
        let number = |at: u64| -> Result<u32, DataError> {
            if at.checked_add(4).is_none_or(|end| end > self.bytes) {
                return Err(short("a message"));
            }
            let mut four = [0; 4];
            self.file.read_exact_at(&mut four, at)?;
            Ok(u32::from_le_bytes(four))
        };
        if at == self.bytes {
            return Ok(None);
        }
        let (start, length) = match number(at)? {
            CONTINUATION => (at + 8, number(at + 4)?),
            length => (at + 4, length),
        };
        let length = u64::from(length);
        if length == 0 {
            // Streams that were put behind each other would lose all but the first.
            if self.listed.is_none() && start != self.bytes {
                let more = self.bytes - start;
                return Err(self.bad(
                    &place,
                    format!("expected the end of the file behind the end of the stream, found {more} bytes"),
                ));
            }
            return Ok(None);
        }
        if length > MAX_METADATA {
            let reason = format!("expected a description of at most {MAX_METADATA} bytes, found {length}");
            return Err(self.bad(&place, reason));
        }
        if start + length > self.bytes {
            return Err(short(&format!("a description of {length} bytes")));
        }
        let mut metadata = vec![0; length as usize];
        self.file.read_exact_at(&mut metadata, start)?;
        let mut head = Head { metadata, body: start + length, body_bytes: 0, place: place.clone() };
        let body = head.message().map_err(|reason| self.bad(&place, reason))?.bodyLength();
        head.body_bytes = u64::try_from(body).map_err(|_| self.bad(&place, "a body of a negative length"))?;
        if head.body.checked_add(head.body_bytes).is_none_or(|end| end > self.bytes) {
            return Err(short(&format!("a body of {body} bytes")));
        }
        Ok(Some(head))
    }
}

impl Head {
    /// What it says.
    pub fn message(&self) -> Result<Message<'_>, String> {
        let message = root_as_message(&self.metadata).map_err(|e| e.to_string())?;
        // An old version may lay out its buffers in another way.
        match message.version() {
            MetadataVersion::V4 | MetadataVersion::V5 => Ok(message),
            other => Err(format!("expected version 4 or 5 of the format, found {other:?}")),
        }
    }
}
