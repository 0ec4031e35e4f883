//! Numbers that get out of hand change no weight, are counted, and end the run with a clear report when they go on.

mod support_run;

use plimsoll_recover::checkpoint;
use plimsoll_watch::Event;
use support_run::Workshop;
use support_run::trainer::records;

#[test]
fn a_run_whose_gradients_are_no_numbers_skips_and_stops_after_as_many_as_it_was_told() {
    for backward in ["on", "off"] {
        let workshop = Workshop::new();
        // After one step the weights are finite and so large that no gradient is.
        workshop.job("effective_batch = 8\nsteps = 40\nsave_every = 1\neval_every = 0\nmax_skips = 3\noptimizer = { name = \"sgd\", lr = 1e30 }");
        let args = ["train", "job.toml", "--out", "run", "--optimizer-in-backward", backward, "--micro-batch", "8"];
        let words = [
            "step 2: the gradient is not finite; no weight is changed by it",
            "error: the gradient is not finite for 3 steps in a row, up to step 4",
            "hint: lower the learning rate",
            "numbers that are not finite (proven)",
            "giving up: a new try would fail the same way",
        ];
        workshop.plimsoll(&args).must(1, &words);
        let run = workshop.path("run");
        let skipped: Vec<(u64, u64)> = records(&run)
            .iter()
            .filter_map(|record| match record.event {
                Event::Skipped { step, in_a_row, .. } => Some((step, in_a_row)),
                _ => None,
            })
            .collect();
        assert_eq!(skipped, [(2, 1), (3, 2), (4, 3)]);
        // What is saved is what the last good step made: the same weights in every checkpoint since.
        let found = checkpoint::list(&run.join("checkpoints")).unwrap();
        let weights: Vec<Vec<u8>> =
            found.iter().map(|one| fs_err::read(one.path.join("weights.safetensors")).unwrap()).collect();
        assert!(!weights.is_empty() && weights.windows(2).all(|pair| pair[0] == pair[1]));
        found.iter().for_each(|one| drop(checkpoint::verify(&one.path).unwrap()));
    }
}
