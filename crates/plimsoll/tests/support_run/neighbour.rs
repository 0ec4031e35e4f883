//! A neighbour in the run's memory cgroup: a process that takes memory and holds it until it is dropped.
//!
//! The test binary is started again as the neighbour, so a test file that has one also has [`take_and_hold`] behind an
//! ignored test of the name `neighbour_process`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use plimsoll_machine::Bytes;

use crate::support::cgroup::Cgroup;

const TAKE: &str = "PLIMSOLL_TEST_TAKE";

/// What the neighbour's process does.
pub fn take_and_hold() {
    let Ok(bytes) = std::env::var(TAKE) else { return };
    let taken = vec![1u8; bytes.parse().unwrap()];
    let mut out = std::io::stdout();
    writeln!(out, "\ntaken {}", taken.iter().map(|b| u64::from(*b)).sum::<u64>()).and_then(|()| out.flush()).unwrap();
    // Holds it until the test lets go.
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(taken);
}

/// A process in the same cgroup that holds memory until it is dropped.
pub struct Neighbour {
    child: Child,
    stdin: Option<ChildStdin>,
    taken: bool,
}

impl Neighbour {
    /// Starts it and waits until it has `bytes`.
    pub fn come(cgroup: &Cgroup, bytes: Bytes) -> Neighbour {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "neighbour_process", "--nocapture", "--test-threads=1"]);
        command.env(TAKE, bytes.0.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        cgroup.enter(&mut command);
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let taken = said.map_while(std::io::Result::ok).any(|line| line.starts_with("taken "));
        let stdin = child.stdin.take();
        Neighbour { child, stdin, taken }
    }

    /// Whether it has its memory. Where a victim takes long to die, the kernel may take a second one.
    pub fn holds(&self) -> bool {
        self.taken
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// Planned for long texts: the room for them is what a smaller plan gives up.
pub const LONG: [&str; 4] = ["--max-source", "1024", "--max-target", "512"];

/// A model whose activations are most of its plan, so that there is something to give up.
pub const WIDE: &str = r#"{"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": 184,
"d_model": 64, "d_kv": 16, "d_ff": 1024, "num_layers": 8, "num_decoder_layers": 8, "num_heads": 4,
"relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "dropout_rate": 0.1,
"layer_norm_epsilon": 1e-06, "initializer_factor": 1.0, "feed_forward_proj": "relu", "is_encoder_decoder": true,
"tie_word_embeddings": true, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}"#;
