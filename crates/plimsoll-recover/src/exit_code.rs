//! The exit codes, in one place: worker, supervisor and scripts speak to each other with them.

/// How a `plimsoll` process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExitCode {
    /// Everything that was asked for is done.
    Done = 0,
    /// The run failed.
    Failed = 1,
    /// Usage, a job or a file is wrong; nothing was started.
    BadInput = 2,
    /// The job does not fit the budget; nothing was started.
    DoesNotFit = 3,
    /// Stopped on request; `plimsoll resume` goes on.
    Stopped = 4,
}

impl ExitCode {
    /// All of them, in order.
    pub const ALL: [ExitCode; 5] =
        [ExitCode::Done, ExitCode::Failed, ExitCode::BadInput, ExitCode::DoesNotFit, ExitCode::Stopped];

    /// The number that the shell sees.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The meaning of a process's exit status; a status that is none of ours (101 is Rust's panic) means `Failed`.
    pub fn of(status: i32) -> ExitCode {
        ExitCode::ALL.into_iter().find(|known| i32::from(known.code()) == status).unwrap_or(ExitCode::Failed)
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> std::process::ExitCode {
        std::process::ExitCode::from(code.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_published_ones_and_a_panic_is_a_failure() {
        let published = [(0, ExitCode::Done), (1, ExitCode::Failed), (2, ExitCode::BadInput)];
        for (status, code) in published.into_iter().chain([(3, ExitCode::DoesNotFit), (4, ExitCode::Stopped)]) {
            assert_eq!(ExitCode::of(status), code);
            assert_eq!(i32::from(code.code()), status);
        }
        assert_eq!(ExitCode::of(101), ExitCode::Failed);
        assert_eq!(ExitCode::of(-1), ExitCode::Failed);
    }
}
