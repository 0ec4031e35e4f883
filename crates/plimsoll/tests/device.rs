//! Where a run goes on a machine whose card cannot be used: to nowhere, with the reason, or to the CPU where the job allows it.
#![allow(clippy::print_stdout)] // why it was skipped

mod support_run;

use plimsoll_engine::cuda::Card;
use support_run::Workshop;
use support_run::decoder::{Rows, tiny};
use support_run::model::Family;

#[test]
fn without_a_card_a_run_on_one_is_refused_and_one_that_may_go_elsewhere_goes_there() {
    let Err(why) = Card::open(0) else {
        println!("skipped: there is a card");
        return;
    };
    let workshop = Workshop::of_model(&tiny(Family::Qwen2), Rows::Chats);
    workshop.decoder_job("", "", "steps = 3\n");
    let why = why.to_string();
    let refused = workshop.plimsoll(&["train", "job.toml", "--device", "cuda", "--out", "never"]);
    refused.must(2, &[&why, "`train.device` = `auto` (`--device auto`) runs it on the CPU then"]);
    assert!(!workshop.path("never").exists());
    let told = format!("the steps run on the CPU: {why}");
    let flags = ["--device", "auto", "--compute", "bf16", "--vram", "6GiB"];
    workshop
        .plimsoll(&[&["train", "job.toml", "--out", "run"], &flags[..]].concat())
        .must(0, &[&told, "done: 3 steps"]);
    let plain = workshop.plimsoll(&["train", "job.toml", "--out", "plain"]);
    plain.must(0, &["done: 3 steps"]);
    let weights = |run: &str| fs_err::read(workshop.path(run).join("model/model.safetensors")).unwrap();
    assert!(weights("run") == weights("plain"), "on the CPU it is the same run");
}
