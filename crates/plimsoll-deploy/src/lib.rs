//! Files that run a job under somebody else's guard: compose, systemd, Slurm, Kubernetes.
//!
//! A [`Deployment`] says what a job needs: its words, its memory with a margin, cards, shared memory, the time that a stop
//! takes. One function a target ([`compose`], [`systemd`], [`slurm`], [`kubernetes`]) turns it into text. What is the same
//! for all is decided once: [`limit`], [`grace`] and [`hardware`](mod@hardware).
//!
//! What every file keeps: the limit is the plan and a margin, without swap; a stop is SIGTERM and waits until the
//! checkpoint is written; a restart goes on with the run; a job that cannot fit, or is wrong, is not started again and
//! again; variables of the environment stand there by name.
//!
//! Architecture invariant: pure. It reads no file, no environment and no clock, and it knows no job, model or plan.

mod compose;
mod deployment;
mod error;
pub mod grace;
pub mod hardware;
mod kubernetes;
pub mod limit;
mod name;
pub mod quote;
pub mod secret;
mod slurm;
mod systemd;

pub use compose::compose;
pub use deployment::{Claim, Deployment, Kind, Mount, Target, outermost};
pub use error::DeployError;
pub use grace::{Grace, Stop};
pub use hardware::{Hardware, Wants, hardware};
pub use kubernetes::kubernetes;
pub use limit::Limit;
pub use name::Name;
pub use slurm::slurm;
pub use systemd::systemd;

use plimsoll_recover::ExitCode;

/// Exit codes after which another start comes to the same end.
const FINAL: [ExitCode; 2] = [ExitCode::BadInput, ExitCode::DoesNotFit];

/// Those and the end of a run that plimsoll gave up: the same machine comes to it again, and has by then forgotten what was tried.
const FINAL_HERE: [ExitCode; 3] = [ExitCode::Failed, ExitCode::BadInput, ExitCode::DoesNotFit];

/// Starts after a failure, before somebody has to look. Plimsoll itself has then tried again many times: these are for its
/// own death.
const RESTARTS: u32 = 3;

/// The file for a target.
pub fn render(target: Target, deployment: &Deployment) -> Result<String, DeployError> {
    deployment.check()?;
    match target {
        Target::Compose => Ok(compose(deployment)),
        Target::Systemd => systemd(deployment),
        Target::Slurm => slurm(deployment),
        Target::K8s => Ok(kubernetes(deployment)),
    }
}
