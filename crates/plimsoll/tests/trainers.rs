//! `plimsoll run` around real trainers on the CPU: Piper, a Hugging Face script with LoRA under accelerate, a plain PyTorch
//! script, DeepSpeed. Each is started in a memory cgroup that is too small for its settings, killed by the kernel after it
//! has saved, judged, made smaller by what the cause asks for, and goes on from its own checkpoint to its end.
//!
//! Needs the trainers (`scripts/trainers-setup`, which `scripts/test` runs), root, and a memory cgroup that may be written
//! to; each test says why it is skipped where one of them is missing. One at a time: they take gigabytes.

#![allow(clippy::print_stdout, reason = "a skipped test says why")]

#[path = "trainers/shop.rs"]
mod shop;
#[allow(dead_code, reason = "only its cgroups are used here")]
mod support;

use shop::{Shop, must, text};

const HF: &str = "accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no \
                  --dynamo_backend no --num_cpu_threads_per_process 1 --main_process_port PORT {hf_lora.py} \
                  --output_dir out --use_cpu True --logging_steps 1 --report_to none";
const PIPER: &str = "python {piper_train.py} fit --data.voice_name tiny --data.csv_path data/metadata.csv \
                     --data.audio_dir data/wav --data.espeak_voice en-us --data.cache_dir data/cache \
                     --data.config_path out/config.json --model.sample_rate 22050 --model.mos_metric none \
                     --trainer.accelerator cpu --trainer.devices 1 --trainer.default_root_dir out \
                     --trainer.log_every_n_steps 1 --seed_everything 1";
/// A voice that is quick to train; everything else is Piper's own.
const SMALL: &str = "--model.segment_size 2048 --model.hidden_channels 96 --model.inter_channels 96 \
                     --model.filter_channels 192 --model.n_layers 2 --model.upsample_initial_channel 128";
const SAVES: &str = "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint \
                     --trainer.callbacks.dirpath=out/periodic --trainer.callbacks.every_n_train_steps=4 \
                     --trainer.callbacks.save_top_k=-1";

#[test]
fn a_plain_script_is_killed_for_memory_and_goes_on_with_half_the_batch_twice() {
    let Some(shop) = Shop::new(&["torch"]) else { return };
    let words = "python {cnn_lstm.py} --out out --batch-size 96 --accum 1 --num-workers 0 --steps 12 --save-every 3 \
                 --seq-steps 120 --warmup-steps 6";
    let output = shop.run("--as-is --ram 1650MiB", words);
    must(&output, 0, &["the effective batch stays 96 a rank (same result)", "training finished at step 12"]);
    shop.died_of_memory("rank 0");
    assert!(text(&output).contains("resumed from"), "{}", text(&output));
    shop.nothing_is_left();
}

#[test]
fn a_hugging_face_script_under_accelerate_goes_on_from_its_checkpoint() {
    let Some(shop) = Shop::new(&["torch", "transformers", "peft", "accelerate"]) else { return };
    let words = format!(
        "{HF} --max_steps 10 --save_steps 3 --per_device_train_batch_size 16 --gradient_accumulation_steps 1 \
         --dataloader_num_workers 0 --train_sampling_strategy sequential --short_first 192"
    );
    let output = shop.run("--as-is --ram 3500MiB", &words);
    must(&output, 0, &["8 samples at a time, 2 times an update", "goes on from", "(step 6)"]);
    shop.died_of_memory("rank ");
    shop.verified("world", true);
    assert!(shop.path("out/checkpoint-10/trainer_state.json").exists());
    must(&shop.logs("--start 2 --rank 1"), 0, &["world size 2, rank 1"]);
    let summary = shop.summary();
    assert_eq!(summary["effective_batch"], 32, "{summary}");
    shop.nothing_is_left();
}

#[test]
fn deepspeed_goes_on_with_a_copy_of_its_file() {
    let Some(shop) = Shop::new(&["torch", "deepspeed"]) else { return };
    let words = "deepspeed --num_accelerators 2 --master_port PORT {ds_zero.py} --deepspeed_config {ds_zero2.json} \
                 --out out --steps 12 --save-every 3 --short-steps 6";
    let before = fs_err::read(shop.script("ds_zero2.json")).unwrap();
    let output = shop.run("--as-is --ram 3250MiB", words);
    must(&output, 0, &["8 samples at a time, 2 times an update", "stands in for", "training finished at step 12"]);
    shop.died_of_memory("rank ");
    shop.verified("deepspeed", true);
    shop.verified("world", true);
    assert_eq!(fs_err::read(shop.script("ds_zero2.json")).unwrap(), before, "the user's file is as it was");
    shop.nothing_is_left();
}

#[test]
fn piper_is_killed_for_memory_and_goes_on_without_loader_processes() {
    let Some(shop) = Shop::new(&["torch", "lightning", "piper.train.vits.monotonic_align.monotonic_align.core"]) else {
        return;
    };
    shop.piper_data();
    let words = format!(
        "{PIPER} {SMALL} {SAVES} --data.batch_size 4 --data.num_workers 1 --trainer.num_sanity_val_steps 0 \
         --trainer.max_steps 16 --trainer.limit_train_batches 4"
    );
    let output = shop.run("--as-is --trainer piper --ram 3900MiB", &words);
    must(&output, 0, &["workers 0 instead of 1", "goes on from", "`Trainer.fit` stopped: `max_steps=16` reached"]);
    shop.died_of_memory("");
    assert!(!text(&output).contains("accumulat"), "Piper refuses accumulation");
    shop.nothing_is_left();
}

#[test]
fn one_of_two_ranks_killed_is_diagnosed_and_the_group_started_again_at_once() {
    let Some(shop) = Shop::new(&["torch", "transformers", "peft", "accelerate"]) else { return };
    let words = format!(
        "{HF} --max_steps 12 --save_steps 3 --per_device_train_batch_size 2 --gradient_accumulation_steps 1 \
         --dataloader_num_workers 0 --length 128"
    );
    let child = shop.start("", &words);
    shop.wait_for("the first checkpoint", || shop.path("out/checkpoint-3/trainer_state.json").exists());
    shop.kill_rank(1);
    let output = child.wait_with_output().unwrap();
    must(&output, 0, &["killed by signal 9, cause unproven, rank 1", "goes on from"]);
    assert!(!text(&output).contains("instead of"), "no setting is changed:\n{}", text(&output));
    println!("from the kill to the next start: {:?}", shop.between_kill_and_next_start());
    assert!(!text(&output).to_lowercase().contains("timed out"), "no time-out was waited for");
    shop.nothing_is_left();
}

#[test]
fn one_process_where_two_were_asked_for_is_said() {
    let Some(shop) = Shop::new(&["torch", "transformers", "peft", "accelerate"]) else { return };
    let words = "accelerate launch --cpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no \
                 --num_cpu_threads_per_process 1 {hf_lora.py} --output_dir out --use_cpu True --max_steps 2 \
                 --per_device_train_batch_size 1 --length 64 --report_to none --logging_steps 1";
    let output = shop.run("", words);
    must(&output, 0, &["not as asked: 2 ranks was asked for, but: 1 rank"]);
    shop.verified("world", false);
}

#[test]
fn estimates_of_the_real_runs_are_near_and_never_too_small() {
    let Some(shop) = Shop::new(&["torch", "transformers", "peft", "deepspeed", "lightning"]) else { return };
    shop.piper_data();
    let hf = format!(
        "{HF} --max_steps 3 --save_steps 100 --per_device_train_batch_size 8 --gradient_accumulation_steps 1 \
                      --dataloader_num_workers 0 --lora_r 8"
    );
    let cases: [(&str, &str, String); 4] = [
        ("", "", format!("{PIPER} --data.batch_size 2 --data.num_workers 0 --trainer.max_steps 6")),
        ("--length 512", r#"{"model_type":"qwen2","hidden_size":128,"num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":384,"vocab_size":8192,"tie_word_embeddings":true}"#, hf),
        ("", r#"{"cnn_lstm":{"version":1,"channels":[64,64,64],"lstm":64,"steps":60,"features":112,"pool":4}}"#,
         "python {cnn_lstm.py} --out out --batch-size 64 --accum 1 --num-workers 0 --steps 6 --save-every 100 \
          --norm batch --dropout 0.3".to_string()),
        ("--length 512", r#"{"layers":4,"hidden":128,"heads":4,"ffn":512,"vocab":8192,"tied":true}"#,
         "deepspeed --num_accelerators 2 --master_port PORT {ds_zero.py} --deepspeed_config {ds_zero2.json} --out out --steps 4 --save-every 100".to_string()),
    ];
    let (mut errors, mut after) = (Vec::new(), Vec::new());
    for (flags, shape, words) in cases {
        let cold = shop.estimated(flags, shape, &words);
        println!(
            "{}: expected {} MiB, safe {}, measured {}",
            cold.name,
            cold.expected >> 20,
            cold.safe >> 20,
            cold.measured >> 20
        );
        assert!(cold.measured <= cold.safe, "{cold:?}");
        errors.push((cold.expected as f64 / cold.measured as f64 - 1.0).abs());
        let warm = shop.estimated(flags, shape, &words);
        let error = (warm.expected as f64 / warm.measured as f64 - 1.0).abs();
        println!(
            "  again: expected {} MiB, measured {}, error {:.1} %",
            warm.expected >> 20,
            warm.measured >> 20,
            100.0 * error
        );
        assert!(warm.measured <= warm.safe, "{warm:?}");
        after.push(error);
    }
    errors.sort_by(f64::total_cmp);
    after.sort_by(f64::total_cmp);
    println!("errors: {errors:.3?}");
    assert!((errors[1] + errors[2]) / 2.0 <= 0.15, "{errors:?}");
    assert!((after[1] + after[2]) / 2.0 <= 0.05, "after one run: {after:?}");
}
