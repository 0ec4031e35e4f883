//! Commands as people type them: recognised, read, changed, and never guessed at.

use std::path::Path;

use plimsoll_launch::trainer::Form;
use plimsoll_launch::{Command, Knob, LaunchError, Settings, Shelf, Value};

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_string).collect()
}

fn understand(text: &str) -> Command {
    understand_in(text, Path::new("/nowhere")).unwrap()
}

fn understand_in(text: &str, folder: &Path) -> Result<Command, LaunchError> {
    Command::understand(words(text), &Shelf::built_in().unwrap(), None, folder)
}

fn settings(pairs: &[(Knob, Value)]) -> Settings {
    pairs.iter().cloned().collect()
}

fn read(command: &Command, folder: &Path) -> Settings {
    command.read(folder, |_| None).unwrap().settings
}

#[test]
fn every_built_in_trainer_is_whole() {
    let shelf = Shelf::built_in().unwrap();
    assert_eq!(shelf.names(), ["accelerate", "deepspeed", "generic", "hf-trainer", "lightning", "piper", "torchrun"]);
    for trainer in shelf.all().unwrap() {
        assert!(!trainer.says.is_empty(), "{}", trainer.name);
    }
}

#[test]
fn launcher_and_trainer_are_told_apart() {
    let cases = [
        ("python3 -m piper.train fit --data.batch_size 4", None, "piper"),
        ("python shim.py fit --data.espeak_voice en --trainer.devices 1", None, "piper"),
        ("python train.py fit --trainer.max_epochs 3", None, "lightning"),
        ("torchrun --nproc_per_node 2 t.py --per_device_train_batch_size 4", Some("torchrun"), "hf-trainer"),
        ("accelerate launch --num_processes 2 t.py --num_train_epochs 1", Some("accelerate"), "hf-trainer"),
        ("/opt/bin/deepspeed --num_gpus 2 t.py --deepspeed_config ds.json", Some("deepspeed"), "generic"),
        ("python -m torch.distributed.run --nproc-per-node=4 t.py --batch-size 8", Some("torchrun"), "generic"),
        ("./train --batch-size 8", None, "generic"),
    ];
    for (text, launcher, trainer) in cases {
        let command = understand(text);
        assert_eq!(command.launcher.as_ref().map(|one| one.name.as_str()), launcher, "{text}");
        assert_eq!(command.trainer.name, trainer, "{text}");
    }
}

#[test]
fn settings_are_read_with_the_trainers_defaults_behind_them() {
    let command = understand("accelerate launch --num_processes 2 t.py --per_device_train_batch_size=4 --bf16 True");
    let found = command.read(Path::new("/nowhere"), |_| None).unwrap();
    assert_eq!(found.settings[&Knob::Batch], Value::from(4));
    assert_eq!(found.settings[&Knob::Accumulation], Value::from(1));
    assert_eq!(found.settings[&Knob::Processes], Value::from(2));
    assert_eq!(found.settings[&Knob::Precision], Value::from("bf16-mixed"));
    assert_eq!(found.said, [Knob::Batch, Knob::Precision, Knob::Processes]);
}

#[test]
fn a_change_touches_its_own_words_and_no_others() {
    let command = understand("accelerate launch --num_processes 2 t.py --per_device_train_batch_size=4 --lr 1e-4");
    let new = settings(&[
        (Knob::Batch, 2.into()),
        (Knob::Accumulation, 2.into()),
        (Knob::Processes, 1.into()),
        (Knob::Precision, "bf16-mixed".into()),
    ]);
    let edited = command.with(&new, Path::new("/nowhere"), Path::new("/run/config")).unwrap();
    assert_eq!(
        edited.words.join(" "),
        "accelerate launch --num_processes 1 t.py --per_device_train_batch_size=2 --lr 1e-4 \
         --gradient_accumulation_steps 2 --bf16 True"
    );
    let again = understand(&edited.words.join(" "));
    let back = settings(&[(Knob::Precision, "fp32".into())]);
    let edited = again.with(&back, Path::new("/nowhere"), Path::new("/run/config")).unwrap();
    assert!(!edited.words.contains(&"--bf16".to_string()), "{:?}", edited.words);
}

#[test]
fn piper_refuses_accumulation_and_cuts_clips_by_a_copy_of_its_table() {
    let command = understand("python -m piper.train fit --data.csv_path a/meta.csv --data.audio_dir a/wav");
    let accumulate = settings(&[(Knob::Accumulation, 2.into())]);
    let error = command.with(&accumulate, Path::new("/nowhere"), Path::new("/run")).unwrap_err().to_string();
    assert!(
        error.starts_with("`piper` cannot set `accumulation`: ") && error.contains("manual optimization"),
        "{error}"
    );
    assert!(!command.can_set(Knob::Accumulation, Path::new("/nowhere")));
    let edited = command.with(&settings(&[(Knob::Length, 8.into())]), Path::new("/x"), Path::new("/run/data")).unwrap();
    let cut = edited.cut.unwrap();
    assert_eq!(
        (cut.of.as_path(), cut.to.as_path(), cut.seconds),
        (Path::new("a/meta.csv"), Path::new("/run/data/meta.csv"), 8)
    );
    assert!(edited.words.join(" ").contains("--data.csv_path /run/data/meta.csv --data.audio_dir a/wav"));
}

#[test]
fn a_deepspeed_file_is_copied_and_never_edited() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ds.json");
    let text = r#"{"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 1}}"#;
    fs_err::write(&file, text).unwrap();
    let command = understand_in("deepspeed --num_gpus 2 t.py --deepspeed_config ds.json", folder.path()).unwrap();
    assert_eq!(read(&command, folder.path())[&Knob::Batch], Value::from(8));
    let new = settings(&[(Knob::Batch, 4.into()), (Knob::Accumulation, 2.into()), (Knob::ZeroStage, 2.into())]);
    let edited = command.with(&new, folder.path(), Path::new("/run/config")).unwrap();
    let [copy] = &edited.copies[..] else { panic!("{:?}", edited.copies) };
    assert_eq!(copy.content["train_micro_batch_size_per_gpu"], 4);
    assert_eq!(copy.content["gradient_accumulation_steps"], 2);
    assert_eq!(copy.content["zero_optimization"]["stage"], 2);
    assert_eq!(edited.words.join(" "), "deepspeed --num_gpus 2 t.py --deepspeed_config /run/config/ds.json");
    assert_eq!(fs_err::read_to_string(&file).unwrap(), text);
}

#[test]
fn numbers_that_a_file_leaves_open_stay_open() {
    let folder = tempfile::tempdir().unwrap();
    fs_err::write(folder.path().join("ds.json"), r#"{"train_micro_batch_size_per_gpu": "auto"}"#).unwrap();
    let text = "deepspeed t.py --per_device_train_batch_size 4 --deepspeed ds.json";
    let command = understand_in(text, folder.path()).unwrap();
    let edited = command.with(&settings(&[(Knob::Batch, 2.into())]), folder.path(), Path::new("/run")).unwrap();
    assert!(edited.copies.is_empty());
    assert_eq!(edited.words.join(" "), "deepspeed t.py --per_device_train_batch_size 2 --deepspeed ds.json");
}

#[test]
fn a_plain_script_is_given_only_flags_that_it_knows() {
    let folder = tempfile::tempdir().unwrap();
    fs_err::write(folder.path().join("t.py"), "p.add_argument('--accum')\np.add_argument('--batch_size')").unwrap();
    let command = understand_in("python t.py", folder.path()).unwrap();
    assert!(command.can_set(Knob::Batch, folder.path()) && command.can_set(Knob::Accumulation, folder.path()));
    assert!(!command.can_set(Knob::Workers, folder.path()));
    let new = settings(&[(Knob::Batch, 4.into()), (Knob::Accumulation, 2.into())]);
    let edited = command.with(&new, folder.path(), Path::new("/run")).unwrap();
    assert_eq!(edited.words.join(" "), "python t.py --batch_size 4 --accum 2");
}

#[test]
fn a_checkpoint_is_passed_on_in_the_trainers_own_way() {
    let folder = tempfile::tempdir().unwrap();
    fs_err::write(folder.path().join("t.py"), "'--resume'").unwrap();
    let cases = [
        ("python -m piper.train fit", Form::TorchFile, "--ckpt_path /c/last.ckpt"),
        ("torchrun t.py --num_train_epochs 1", Form::HfTrainer, "--resume_from_checkpoint /c/last.ckpt"),
        ("python t.py", Form::TorchFile, "--resume /c/last.ckpt"),
        ("deepspeed --num_gpus 2 t.py --deepspeed_config d.json", Form::DeepSpeed, "--resume /c"),
    ];
    for (text, form, expected) in cases {
        let command = understand_in(text, folder.path()).unwrap();
        let plain = command.with(&Settings::new(), folder.path(), Path::new("/run")).unwrap();
        let edited = command.going_on(&plain, Path::new("/c/last.ckpt"), form).unwrap();
        assert!(edited.words.join(" ").ends_with(expected), "{text}: {:?}", edited.words);
        let twice = command.going_on(&edited, Path::new("/d/x.ckpt"), form).unwrap();
        assert_eq!(twice.words.len(), edited.words.len(), "{text}: {:?}", twice.words);
    }
    let blind = understand("./train --epochs 3");
    let plain = blind.with(&Settings::new(), folder.path(), Path::new("/run")).unwrap();
    assert!(blind.going_on(&plain, Path::new("/c"), Form::TorchFile).is_none());
}

#[test]
fn a_flag_that_stands_twice_or_is_a_letter_off_is_refused() {
    let error = understand_in("python -m piper.train fit --trainer.devices=4 --trainer.devices=1", Path::new("/x"));
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "`--trainer.devices` is given twice: `4` and `1`; one of them would be ignored");
    let error = understand_in("torchrun t.py --per_device_train_batch_sise 4 --num_train_epochs 1", Path::new("/x"));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("did you mean `--per_device_train_batch_size`?"), "{error}");
}

#[test]
fn programs_are_found_behind_what_runs_them() {
    // Program, script and launcher by their words.
    let cases = [
        ("env X=1 Y=2 Z=3 W=4 python t.py --lr 1", "python", Some("t.py"), None),
        ("env PYTHON=/usr/bin/python torchrun t.py", "torchrun", Some("t.py"), Some("torchrun")),
        ("numactl -m 0 -N 0 python t.py", "python", Some("t.py"), None),
        ("srun -m block --exclusive torchrun t.py", "torchrun", Some("t.py"), Some("torchrun")),
        ("srun --job-name deepspeed python t.py", "python", Some("t.py"), None),
        ("nohup nice -n 10 accelerate launch t.py", "accelerate", Some("t.py"), Some("accelerate")),
        ("accelerate-launch t.py", "accelerate-launch", Some("t.py"), Some("accelerate")),
        ("uv run --no-sync train.py --epochs 3", "uv", Some("train.py"), None),
        ("uv run -- python -m pkg.train", "python", Some("pkg.train"), None),
        ("python -u -W ignore -um pkg.train -m 3", "python", Some("pkg.train"), None),
        ("python -X dev train --out x.py", "python", Some("train"), None),
        ("python /opt/bin/torchrun --nproc_per_node 2 t.py", "python", Some("t.py"), Some("torchrun")),
        ("python -m torch.distributed.run -m pkg.train", "python", Some("pkg.train"), Some("torchrun")),
        ("torchrun --log-dir deepspeed t.py", "torchrun", Some("t.py"), Some("torchrun")),
        ("torchrun --no-python ./train --lr 1", "torchrun", Some("./train"), Some("torchrun")),
        ("./train.py --epochs 3", "./train.py", Some("./train.py"), None),
        ("./train --config conf.py --backend deepspeed", "./train", None, None),
        ("bash -c train.py", "bash", None, None),
        ("bash train.sh --epochs 3", "bash", None, None),
    ];
    for (text, program, script, launcher) in cases {
        let command = understand(text);
        assert_eq!(command.words[command.program], program, "{text}");
        assert_eq!(command.script.map(|at| command.words[at].as_str()), script, "{text}");
        assert_eq!(command.launcher.as_ref().map(|one| one.name.as_str()), launcher, "{text}");
    }
}

#[test]
fn a_launchers_flag_goes_to_the_launcher_wherever_the_script_stands() {
    let cases = [
        ("torchrun t.py", "torchrun --nproc_per_node 2 t.py"),
        ("torchrun -m pkg.train --lr 1", "torchrun --nproc_per_node 2 -m pkg.train --lr 1"),
        ("uv run -- torchrun t.py", "uv run -- torchrun --nproc_per_node 2 t.py"),
        ("srun --nproc_per_node 8 torchrun t.py", "srun --nproc_per_node 8 torchrun --nproc_per_node 2 t.py"),
        ("torchrun --standalone -- t.py", "torchrun --standalone --nproc_per_node 2 -- t.py"),
        ("torchrun train --lr 1", "torchrun --nproc_per_node 2 train --lr 1"),
        ("python -m torch.distributed.run train", "python -m torch.distributed.run --nproc_per_node 2 train"),
    ];
    for (text, expected) in cases {
        let two = settings(&[(Knob::Processes, 2.into())]);
        let edited = understand(text).with(&two, Path::new("/nowhere"), Path::new("/run")).unwrap();
        assert_eq!(edited.words.join(" "), expected);
    }
}

#[test]
fn nothing_is_written_into_a_shells_text() {
    let shelf = Shelf::built_in().unwrap();
    let words = ["srun", "bash", "-lc", "python t.py --batch-size 4 --batch-size 8"].map(String::from).to_vec();
    let command = Command::understand(words.clone(), &shelf, Some("hf-trainer"), Path::new("/nowhere")).unwrap();
    assert!(command.is_hidden() && !command.can_set(Knob::Batch, Path::new("/nowhere")));
    let error = command.with(&settings(&[(Knob::Batch, 2.into())]), Path::new("/nowhere"), Path::new("/run"));
    assert!(error.unwrap_err().to_string().contains("a shell runs the command out of one text"));
    // The environment reaches what the shell starts.
    let segments = settings(&[(Knob::Segments, "expandable".into())]);
    let edited = command.with(&segments, Path::new("/nowhere"), Path::new("/run")).unwrap();
    assert_eq!((edited.words.as_slice(), edited.env.len()), (words.as_slice(), 1));
    assert!(command.going_on(&edited, Path::new("/c/last.ckpt"), Form::TorchFile).is_none());
}

#[test]
fn a_variable_that_the_command_itself_sets_is_read_and_set_there() {
    let command =
        understand("env A=1 PYTORCH_ALLOC_CONF=a:1,expandable_segments:True python t.py --num_train_epochs 1");
    assert_eq!(read(&command, Path::new("/nowhere"))[&Knob::Segments], Value::from("expandable"));
    let plain = settings(&[(Knob::Segments, "default".into())]);
    let edited = command.with(&plain, Path::new("/nowhere"), Path::new("/run")).unwrap();
    assert_eq!(edited.words.join(" "), "env A=1 PYTORCH_ALLOC_CONF=a:1 python t.py --num_train_epochs 1");
    assert!(edited.env.is_empty());
}

#[test]
fn a_modules_text_tells_which_flags_it_knows() {
    let folder = tempfile::tempdir().unwrap();
    fs_err::create_dir_all(folder.path().join("pkg/train")).unwrap();
    fs_err::write(folder.path().join("pkg/train/__main__.py"), "p.add_argument('--batch_size')").unwrap();
    let command = understand_in("python -m pkg.train", folder.path()).unwrap();
    assert!(command.can_set(Knob::Batch, folder.path()) && !command.can_set(Knob::Workers, folder.path()));
    let error = command.with(&settings(&[(Knob::Workers, 2.into())]), folder.path(), Path::new("/run")).unwrap_err();
    assert!(error.to_string().contains("neither the command nor its script has `--num-workers`"), "{error}");
}

#[test]
fn other_words_and_usual_spellings_of_two_things_are_no_doubles() {
    for text in [
        "python t.py --out a --output-dir b",
        "python t.py --tag a --tag b",
        "torchrun --nproc_per_node 2 t.py --num_train_epochs 1 --nproc_per_node 3",
        "python -m piper.train fit --trainer.callbacks+=A --trainer.callbacks.dirpath=x --trainer.callbacks+=B \
         --trainer.callbacks.dirpath=y",
        "python t.py --batch-size 4 -- --batch-size 8",
    ] {
        assert!(understand_in(text, Path::new("/x")).is_ok(), "{text}");
    }
    let error = understand_in("python t.py --batch-size 4 --batch_size=8", Path::new("/x")).unwrap_err().to_string();
    assert_eq!(error, "`--batch_size` is given twice: `4` and `8`; one of them would be ignored");
    let twice = |text: &str| plimsoll_launch::command::doubled(&words(text)).into_keys().collect::<Vec<_>>();
    assert_eq!(twice("torchrun --log-dir a t.py --log-dir b --x 1 --x 2"), ["--x"]);
}

#[test]
fn a_users_trainer_builds_on_a_built_in_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    let text = "name = \"mine\"\nbase = \"generic\"\nguesses = false\n[knobs]\nbatch = { flags = [\"--micro\"] }\n";
    fs_err::write(&file, text).unwrap();
    let mut shelf = Shelf::built_in().unwrap();
    assert_eq!(shelf.add(&file).unwrap(), "mine");
    let command = Command::understand(words("./x --micro 4"), &shelf, Some("mine"), folder.path()).unwrap();
    assert_eq!(read(&command, folder.path())[&Knob::Batch], Value::from(4));
    assert!(command.trainer.knobs.contains_key(&Knob::Workers));

    fs_err::write(&file, text.replace("batch", "bach")).unwrap();
    let error = shelf.add(&file).unwrap_err().to_string();
    assert!(error.contains("mine.toml") && error.contains("bach"), "{error}");
    fs_err::write(&file, "name = \"mine\"\n[log]\nprogress = [\"(\"]\n").unwrap();
    let error = shelf.add(&file).unwrap_err().to_string();
    assert!(error.contains("is no pattern"), "{error}");
    let error = shelf.get("pipper").unwrap_err().to_string();
    assert!(error.ends_with("did you mean `piper`?"), "{error}");
}
