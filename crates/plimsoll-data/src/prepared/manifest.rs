//! What a prepared set says of itself: what made it, which lengths it serves, its shards.
//!
//! Invariant: a manifest is written last, beside and renamed, so where there is one, all shards are there; its own checksum covers
//! every field. Reading it believes nothing that the shards do not confirm (`open.rs`). It knows no tokens.

use std::io::Write;
use std::path::Path;

use fs_err::File;
use serde::{Deserialize, Serialize};

use super::digest::digest;
use super::maker::{MadeAt, Reach, most_id};
use crate::{ChosenColumns, DataError, Kind, Recipe, Sources, TextTokenizer};

/// The file of a prepared set by which it is known.
pub(crate) const NAME: &str = "prepared.json";
const VERSION: u32 = 1;
/// No manifest is larger: some 300 bytes a shard.
const MOST_BYTES: u64 = 64 << 20;
/// No text is longer: a block of the files has fewer bytes of it.
const LONGEST_TEXT: u64 = u32::MAX as u64;

/// What turned rows into tokens. Another of these is another set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MadeBy {
    pub kind: Kind,
    /// Of the bytes of `tokenizer.json`.
    pub tokenizer: String,
    /// Tokens that the tokenizer knows.
    pub vocabulary: u64,
    /// The highest id.
    pub most_id: u32,
    pub eos_id: u32,
    pub bos_id: Option<u32>,
    /// Of the chat template, its special tokens and its date.
    pub template: Option<String>,
    /// Long texts are split, and so tokenised in parts.
    pub splits: bool,
}

/// Lengths of one side, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LengthsOf {
    /// The set is made for this one.
    pub made: u64,
    /// Rows are kept as far as samples of this length look at them.
    pub longest: u64,
    /// It serves others from this one on,
    pub from: u64,
    /// unless it serves no other,
    pub only_made: bool,
    /// and above the longest where no row has more than is stored.
    pub more: bool,
    /// Rows of which something is left out at the length it is made for.
    pub cut: u64,
}

/// One shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShardFacts {
    pub file: String,
    pub rows: u64,
    pub blocks: u64,
    pub tokens: u64,
    pub bytes: u64,
    /// Of its table, which has the checksums of its blocks.
    pub crc: u32,
}

/// An original file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Original {
    pub name: String,
    pub bytes: u64,
}

/// Where the rows come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Origin {
    /// [`Sources::fingerprint`], which the prepared set has too.
    pub fingerprint: String,
    pub files: Vec<Original>,
    pub rows: u64,
    pub blocks: u64,
    pub text_bytes: u64,
    /// Of all rows, in bytes.
    pub longest_source: u64,
    pub longest_target: u64,
    pub columns: ChosenColumns,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub plimsoll_prepared: u32,
    pub made_by: MadeBy,
    /// Of source and target; documents have the first alone.
    pub lengths: [LengthsOf; 2],
    /// Bytes of a token.
    pub word_bytes: u32,
    pub origin: Origin,
    pub shards: Vec<ShardFacts>,
    /// Of all fields above.
    pub crc: u32,
}

fn hex(number: u64) -> String {
    format!("{number:016x}")
}

impl MadeBy {
    pub fn of(tokenizer: &TextTokenizer, recipe: &Recipe) -> MadeBy {
        MadeBy {
            kind: recipe.kind(),
            tokenizer: hex(tokenizer.fingerprint()),
            vocabulary: tokenizer.vocab_size() as u64,
            most_id: most_id(tokenizer, recipe),
            eos_id: tokenizer.eos_id(),
            bos_id: recipe.bos_id(),
            template: recipe.template().map(|template| hex(template.fingerprint())),
            splits: recipe.splits(),
        }
    }

    /// What `asked` differs in: its name, as it was prepared, as it is asked for.
    pub fn differs(&self, asked: &MadeBy) -> Option<(&'static str, String, String)> {
        let (here, there) = (self.told(), asked.told());
        let other = here.into_iter().zip(there).find(|(one, two)| one != two);
        other.map(|((name, prepared), (_, asked))| (name, prepared, asked))
    }

    /// Every fact, in words.
    fn told(&self) -> [(&'static str, String); 7] {
        let token = |id: Option<u32>| id.map_or("none".to_string(), |id| id.to_string());
        [
            ("rows of kind", format!("{:?}", self.kind).to_lowercase()),
            ("the tokenizer", format!("{} ({} tokens)", self.tokenizer, self.vocabulary)),
            ("the end-of-sequence token", token(Some(self.eos_id))),
            ("the token before texts", token(self.bos_id)),
            ("the chat template", self.template.clone().unwrap_or_else(|| "none".into())),
            ("long texts", if self.splits { "split" } else { "cut or dropped" }.into()),
            ("ids up to", self.most_id.to_string()),
        ]
    }
}

impl LengthsOf {
    pub fn new(at: MadeAt, reach: Reach) -> LengthsOf {
        LengthsOf {
            made: at.made as u64,
            longest: at.longest as u64,
            from: reach.from,
            only_made: reach.only_made,
            more: reach.more,
            cut: reach.cut,
        }
    }

    pub fn at(&self) -> MadeAt {
        MadeAt { made: self.made as usize, longest: self.longest as usize }
    }

    pub fn reach(&self) -> Reach {
        Reach { from: self.from, cut: self.cut, only_made: self.only_made, more: self.more }
    }

    /// Which lengths are served, in words.
    pub fn told(&self) -> String {
        let LengthsOf { made, longest, from, only_made, more, .. } = *self;
        let from = from.max(1);
        match (only_made || from > longest, more) {
            (true, _) => format!("{made} tokens"),
            (false, true) if from == longest && from > made => format!("{made} and {longest} tokens"),
            (false, true) if from <= made => format!("{from} to {longest} tokens"),
            (false, true) => format!("{made} and {from} to {longest} tokens"),
            (false, false) if from <= made => format!("{from} tokens and more"),
            (false, false) => format!("{made} tokens, and from {from} on"),
        }
    }
}

impl Origin {
    pub fn of(sources: &Sources) -> Origin {
        // For people; what the rows are is told by the fingerprint.
        let file = |(path, bytes): (&Path, u64)| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Original { name, bytes }
        };
        Origin {
            fingerprint: hex(sources.fingerprint()),
            files: sources.lengths().map(file).collect(),
            rows: sources.rows(),
            blocks: sources.blocks().len() as u64,
            text_bytes: sources.blocks().iter().map(|block| u64::from(block.text_bytes)).sum(),
            longest_source: sources.facts().longest_source,
            longest_target: sources.facts().longest_target,
            columns: sources.columns().clone(),
        }
    }
}

/// What makes shards of one set fit together, and no others.
pub(crate) fn identity(made_by: &MadeBy, at: [MadeAt; 2], origin: &Origin, word_bytes: u32) -> u64 {
    let Origin { fingerprint, rows, blocks, .. } = origin;
    let lengths = at.map(|side| [side.made, side.longest]);
    digest(format!("{VERSION} {made_by:?} {lengths:?} {word_bytes} {fingerprint} {rows} {blocks}").as_bytes())
}

impl Manifest {
    /// The checksum of the other fields.
    fn checksum(&self) -> u32 {
        let plain = Manifest { crc: 0, ..self.clone() };
        crc32fast::hash(serde_json::to_string(&plain).unwrap_or_default().as_bytes())
    }

    pub fn new(
        made_by: MadeBy,
        lengths: [LengthsOf; 2],
        word_bytes: u32,
        origin: Origin,
        shards: Vec<ShardFacts>,
    ) -> Manifest {
        let open = Manifest { plimsoll_prepared: VERSION, made_by, lengths, word_bytes, origin, shards, crc: 0 };
        Manifest { crc: open.checksum(), ..open }
    }

    pub fn identity(&self) -> u64 {
        identity(&self.made_by, self.lengths.map(|side| side.at()), &self.origin, self.word_bytes)
    }

    /// Writes it, whole or not at all.
    pub fn write(&self, folder: &Path) -> Result<(), DataError> {
        let (place, beside) = (folder.join(NAME), folder.join(format!("{NAME}.part")));
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::from)? + "\n";
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs_err::rename(&beside, &place)?;
        Ok(File::open(folder)?.sync_all()?)
    }

    /// Reads and checks it.
    pub fn read(folder: &Path) -> Result<Manifest, DataError> {
        let path = folder.join(NAME);
        let bad = |place: &str, expected: String, found: String| {
            Err(DataError::BadPrepared { path: path.clone(), place: place.into(), expected, found })
        };
        let length = fs_err::metadata(&path)?.len();
        if length > MOST_BYTES {
            return bad("length", format!("at most {MOST_BYTES} bytes"), format!("{length}"));
        }
        let text = fs_err::read(&path)?;
        #[derive(Deserialize)]
        struct Version {
            plimsoll_prepared: u32,
        }
        match serde_json::from_slice::<Version>(&text) {
            Ok(Version { plimsoll_prepared: VERSION }) | Err(_) => {}
            Ok(Version { plimsoll_prepared: other }) => {
                return bad("version", format!("{VERSION}, which this program knows"), other.to_string());
            }
        }
        let manifest: Manifest = match serde_json::from_slice(&text) {
            Ok(manifest) => manifest,
            Err(e) => return bad("text", "a manifest of prepared data".into(), e.to_string()),
        };
        let (told, computed) = (manifest.crc, manifest.checksum());
        if told != computed {
            return bad("text", format!("the checksum {told}"), format!("{computed}"));
        }
        let sound =
            |side: &LengthsOf| (1..=1 << 30).contains(&side.made) && (side.made..=1 << 30).contains(&side.longest);
        if !manifest.lengths.iter().all(sound) || !matches!(manifest.word_bytes, 2 | 4) {
            return bad(
                "lengths",
                "lengths of at least 1, and tokens of 2 or 4 bytes".into(),
                format!("{:?}", manifest.lengths),
            );
        }
        let Origin { longest_source, longest_target, .. } = manifest.origin;
        if longest_source.max(longest_target) > LONGEST_TEXT {
            let found = format!("{longest_source} and {longest_target}");
            return bad("longest texts", format!("at most {LONGEST_TEXT} bytes"), found);
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_told_as_they_are_served() {
        let of = |made, from, only_made, more| LengthsOf { made, longest: 4096, from, only_made, more, cut: 0 };
        for (lengths, told) in [
            (of(512, 40, false, false), "40 tokens and more"),
            (of(512, 40, false, true), "40 to 4096 tokens"),
            (of(512, 900, false, true), "512 and 900 to 4096 tokens"),
            (of(512, 900, false, false), "512 tokens, and from 900 on"),
            (of(512, 40, true, true), "512 tokens"),
        ] {
            assert_eq!(lengths.told(), told);
            for length in [1, 39, 40, 512, 899, 900, 4096, 4097] {
                let served = lengths.reach().serves(lengths.at(), length);
                let expected = length == 512
                    || !lengths.only_made && length as u64 >= lengths.from && (length <= 4096 || !lengths.more);
                assert_eq!(served, expected, "{told}: {length}");
            }
        }
    }
}
