//! The threads of a loader: begun one after the other, joined together. A panic in one is an error of the loader.
//!
//! Invariant: whoever ends a crew has told its threads to stop before. It knows nothing of what they do.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::DataError;
use crate::error::panic_message;
use crate::loader::{LOADER_STACK_BYTES, ThreadHook};

/// Threads that share an `S`.
#[derive(Default)]
pub(crate) struct Crew(Vec<JoinHandle<()>>);

impl Crew {
    /// Starts threads that run `produce` after the hook; `fail` hears of a panic. Those that began before one that could not are in the
    /// crew too.
    pub fn begin<S: Send + Sync + 'static>(
        &mut self,
        shared: &Arc<S>,
        (threads, hook): (usize, Option<ThreadHook>),
        produce: fn(&S),
        fail: fn(&S, DataError),
    ) -> io::Result<()> {
        self.0.reserve_exact(threads);
        for number in 0..threads {
            let (shared, hook) = (shared.clone(), hook.clone());
            let work = move || {
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    if let Some(hook) = hook {
                        hook();
                    }
                    produce(&shared);
                }));
                if let Err(panic) = outcome {
                    fail(&shared, DataError::ThreadPanicked { reason: panic_message(panic) });
                }
            };
            let named = std::thread::Builder::new().name(format!("loader-{number}"));
            self.0.push(named.stack_size(LOADER_STACK_BYTES).spawn(work)?);
        }
        Ok(())
    }

    /// Waits until they are gone.
    pub fn end(&mut self) {
        for thread in self.0.drain(..) {
            // A panic was already turned into an error; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}
