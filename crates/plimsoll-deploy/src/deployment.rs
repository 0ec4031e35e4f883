//! What a job needs, wherever it runs.

use plimsoll_machine::Bytes;
use serde::Serialize;

use crate::{DeployError, Grace, Limit, Name};

/// Who runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// `docker compose`.
    Compose,
    /// A systemd service.
    Systemd,
    /// A Slurm batch script.
    Slurm,
    /// A Kubernetes job.
    K8s,
}

impl Target {
    /// Whether a job sees its user's home there: a container has none.
    pub fn has_home(self) -> bool {
        matches!(self, Target::Systemd | Target::Slurm)
    }
}

/// Whose training it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Ours.
    Native,
    /// Somebody else's program under our guard.
    Foreign,
}

/// A folder that the job needs, at the same path inside and outside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Mount {
    /// Its absolute path.
    pub path: String,
    /// Whether the job writes there.
    pub written: bool,
}

/// A volume claim of Kubernetes and where it is mounted; it stands for all folders at and below that path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Claim {
    /// Its name.
    pub name: String,
    /// Where.
    pub path: String,
}

impl Claim {
    /// From `NAME=/PATH`.
    pub fn parse(text: &str) -> Result<Claim, DeployError> {
        let wrong = || DeployError::NotAClaim { text: text.to_string() };
        let (name, path) = text.split_once('=').ok_or_else(wrong)?;
        let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        let path = path.trim_end_matches('/');
        let fine = !name.is_empty() && name.chars().all(label) && path.starts_with('/');
        fine.then(|| Claim { name: name.to_string(), path: path.to_string() }).ok_or_else(wrong)
    }

    fn holds(&self, path: &str) -> bool {
        path.strip_prefix(&self.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// A job, ready to be run by somebody else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Deployment {
    /// Its name.
    pub name: Name,
    /// Whose training it is.
    pub kind: Kind,
    /// What is worth saying at the top of a file.
    pub notes: Vec<String>,
    /// The program on a machine without containers: an absolute path.
    pub program: String,
    /// Its words behind the program. A second start with the same words goes on with the run.
    pub words: Vec<String>,
    /// Where it runs: relative paths in its words begin there.
    pub folder: String,
    /// The container image, with `plimsoll` on its path.
    pub image: String,
    /// RAM.
    pub memory: Limit,
    /// `/dev/shm`, where the usual 64 MiB of a container are too little.
    pub shm: Option<Bytes>,
    /// Cards.
    pub cards: u64,
    /// Cores that it can use.
    pub cores: u64,
    /// The time that a stop gets.
    pub grace: Grace,
    /// Whether a stop saves: some trainers of others do not.
    pub saves: bool,
    /// Variables that it gets by name.
    pub variables: Vec<String>,
    /// Variables with values that are nobody's secret.
    pub set: Vec<(String, String)>,
    /// Folders.
    pub mounts: Vec<Mount>,
    /// Whom its files shall belong to: user and group.
    pub owner: (u32, u32),
    /// Claims that stand for folders, for Kubernetes.
    pub claims: Vec<Claim>,
    /// The Kubernetes secret that holds the variables.
    pub secret: String,
}

impl Deployment {
    /// Refuses what no file can say.
    pub fn check(&self) -> Result<(), DeployError> {
        let set = self.set.iter().map(|(_, value)| value);
        let paths = self.mounts.iter().map(|mount| &mount.path).chain([&self.folder, &self.program]);
        for text in self.words.iter().chain(set).chain([&self.image]).chain(paths.clone()) {
            if text.contains('\0') {
                return Err(DeployError::ZeroByte { what: text.replace('\0', "\\0") });
            }
        }
        for path in paths {
            if !path.starts_with('/') {
                return Err(DeployError::NotAbsolute { path: path.clone() });
            }
        }
        Ok(())
    }

    /// The lines at the top of a file: what it is, what it was made from.
    pub(crate) fn head(&self, how: &[&str]) -> String {
        let first = format!("{}, written by plimsoll {}.", self.name, env!("CARGO_PKG_VERSION"));
        let lines =
            std::iter::once(first.as_str()).chain(how.iter().copied()).chain(self.notes.iter().map(String::as_str));
        lines.map(|line| format!("# {}\n", crate::quote::comment(line))).collect()
    }

    /// How it is stopped, and what that costs.
    pub(crate) fn stopped_by(&self, how: &str) -> String {
        match self.saves {
            true => format!("Stop; a checkpoint is saved first: {how}"),
            false => {
                format!("Stop; the trainer does not save then, so steps since its last checkpoint are lost: {how}")
            }
        }
    }

    /// Folders that no claim stands for.
    pub(crate) fn unclaimed(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter().filter(|mount| !self.claims.iter().any(|claim| claim.holds(&mount.path)))
    }
}

/// A part of the path can be a mount of its own only if none above it is mounted: the outer one is enough, and it is written to if
/// either is.
pub fn outermost(mounts: impl IntoIterator<Item = Mount>) -> Vec<Mount> {
    let mut all: Vec<Mount> = mounts.into_iter().collect();
    all.sort();
    let mut kept: Vec<Mount> = Vec::new();
    for mount in all {
        let outer = kept.iter_mut().find(|outer| {
            let claim = Claim { name: String::new(), path: outer.path.trim_end_matches('/').to_string() };
            claim.holds(&mount.path)
        });
        match outer {
            Some(outer) if outer.written || !mount.written => {}
            // A folder to write to inside of one that is only read keeps its own mount.
            Some(outer) if outer.path != mount.path => kept.push(mount),
            Some(outer) => outer.written = true,
            None => kept.push(mount),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(path: &str, written: bool) -> Mount {
        Mount { path: path.into(), written }
    }

    #[test]
    fn a_folder_inside_of_another_needs_no_mount_unless_it_is_written_to() {
        let all =
            [mount("/data/a", false), mount("/data", false), mount("/data/runs", true), mount("/database", false)];
        let kept = outermost(all);
        assert_eq!(kept, [mount("/data", false), mount("/data/runs", true), mount("/database", false)]);
        assert_eq!(outermost([mount("/a", false), mount("/a", true)]), [mount("/a", true)]);
        assert_eq!(outermost([mount("/a", true), mount("/a/b", false)]), [mount("/a", true)]);
    }

    #[test]
    fn a_claim_is_a_name_and_an_absolute_path() {
        let claim = Claim::parse("disk=/data/").unwrap();
        assert_eq!(claim, Claim { name: "disk".into(), path: "/data".into() });
        assert!(claim.holds("/data") && claim.holds("/data/x") && !claim.holds("/database"));
        for wrong in ["disk", "=/data", "disk=data", "Disk=/data", "disk=/", "disk=//"] {
            assert!(Claim::parse(wrong).is_err(), "{wrong}");
        }
    }
}
