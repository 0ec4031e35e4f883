//! A copy of a table of sound files without the rows that last too long: a cap on length for trainers that have none.
//!
//! The user's table is never changed. A row whose file cannot be measured stays, and is counted.

use std::path::{Path, PathBuf};

use crate::LaunchError;
use crate::command::RowCut;

/// What a cut came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Rows that stay.
    pub kept: usize,
    /// Rows that last too long.
    pub dropped: usize,
    /// Rows whose file is no WAV that can be measured; they stay.
    pub unmeasured: usize,
}

/// The cut table, and what was cut; `base` is where the command runs.
pub fn cut(cut: &RowCut, base: &Path) -> Result<(String, Cut), LaunchError> {
    let table = base.join(&cut.of);
    let text = fs_err::read_to_string(&table)?;
    let folder = sounds(cut, base);
    let (mut out, mut done) = (String::with_capacity(text.len()), Cut::default());
    for line in text.lines() {
        let name = line.split(cut.rows.separator).next().unwrap_or_default();
        match seconds(&folder, name) {
            Some(seconds) if seconds > cut.seconds as f64 => {
                done.dropped += 1;
                continue;
            }
            Some(_) => done.kept += 1,
            None => (done.kept, done.unmeasured) = (done.kept + 1, done.unmeasured + 1),
        }
        out.push_str(line);
        out.push('\n');
    }
    if done.kept == 0 {
        let problem = format!("no row lasts {} s or less; expected at least one", cut.seconds);
        return Err(LaunchError::Config { path: table, problem });
    }
    Ok((out, done))
}

/// The longest row of a table, in whole seconds, rounded up.
pub fn longest(table: &Path, folder: Option<&Path>, separator: char) -> Option<u64> {
    let text = fs_err::read_to_string(table).ok()?;
    let folder = folder.map_or_else(|| table.parent().unwrap_or(Path::new(".")).to_path_buf(), Path::to_path_buf);
    let all = text.lines().filter_map(|line| seconds(&folder, line.split(separator).next()?));
    let longest = all.fold(0.0_f64, f64::max);
    (longest > 0.0).then_some(longest.ceil() as u64)
}

fn sounds(cut: &RowCut, base: &Path) -> PathBuf {
    match &cut.folder {
        Some(folder) => base.join(folder),
        None => base.join(cut.of.parent().unwrap_or(Path::new(""))),
    }
}

fn seconds(folder: &Path, name: &str) -> Option<f64> {
    let path = [folder.join(name), folder.join(format!("{name}.wav"))].into_iter().find(|path| path.is_file())?;
    let reader = hound::WavReader::open(path).ok()?;
    Some(f64::from(reader.duration()) / f64::from(reader.spec().sample_rate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::Rows;

    fn wav(path: &Path, seconds: u32) {
        let spec = hound::WavSpec {
            channels: 1,
            sample_rate: 100,
            bits_per_sample: 16,
            sample_format: hound::SampleFormat::Int,
        };
        let mut writer = hound::WavWriter::create(path, spec).unwrap();
        (0..100 * seconds).for_each(|_| writer.write_sample(0i16).unwrap());
        writer.finalize().unwrap();
    }

    #[test]
    fn long_rows_go_and_what_cannot_be_measured_stays() {
        let folder = tempfile::tempdir().unwrap();
        wav(&folder.path().join("a.wav"), 2);
        wav(&folder.path().join("b.wav"), 9);
        fs_err::write(folder.path().join("c.wav"), "no sound").unwrap();
        let text = "a.wav|hello\nb|a long one\nc.wav|odd\n";
        fs_err::write(folder.path().join("meta.csv"), text).unwrap();
        let rows = Rows { table: "--t".into(), folder: "--f".into(), separator: '|' };
        let mut order = RowCut { rows, of: "meta.csv".into(), folder: None, to: "/run/meta.csv".into(), seconds: 5 };
        let (out, done) = cut(&order, folder.path()).unwrap();
        assert_eq!(out, "a.wav|hello\nc.wav|odd\n");
        assert_eq!(done, Cut { kept: 2, dropped: 1, unmeasured: 1 });
        assert_eq!(longest(&folder.path().join("meta.csv"), None, '|'), Some(9));
        fs_err::write(folder.path().join("meta.csv"), "b|a long one\n").unwrap();
        order.seconds = 1;
        assert!(cut(&order, folder.path()).unwrap_err().to_string().contains("no row lasts 1 s or less"));
        assert_eq!(fs_err::read_to_string(folder.path().join("meta.csv")).unwrap(), "b|a long one\n");
    }
}
