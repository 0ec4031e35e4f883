use std::time::{Duration, SystemTime};

use fs_err as fs;

use super::*;
use crate::trainer::Form;
use crate::{Command, Shelf};

/// What `torch.save` writes, as far as wholeness goes: a head and an empty directory.
fn torch_file(path: &Path) {
    let mut bytes = b"PK\x03\x04".to_vec();
    bytes.extend(b"PK\x05\x06");
    bytes.extend([0; 18]);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn step_of(name: &str) -> Option<u64> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    torch_file(&path);
    forms::look(Form::TorchFile, &path).unwrap().step
}

#[test]
fn a_step_is_read_from_names_that_have_one() {
    for (name, step) in [
        ("epoch=0-step=8.ckpt", Some(8)),
        ("ckpt_500.pt", Some(500)),
        ("model-v2-1200.pth", Some(1200)),
        ("500-loss=0.31.pt", Some(500)),
        ("epoch=3-val_mel=0.51.ckpt", None),
        ("model_epoch_5.pt", None),
        ("best-acc=93.pt", None),
        ("last.ckpt", None),
    ] {
        assert_eq!(step_of(name), step, "{name}");
    }
}

#[test]
fn a_deepspeed_save_that_was_cut_leaves_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for step in ["global_step10", "global_step20"] {
        torch_file(&root.join(step).join("mp_rank_00_model_states.pt"));
        torch_file(&root.join(step).join("zero_pp_rank_0_mp_rank_00_optim_states.pt"));
    }
    let torn = |step: &str| forms::look(Form::DeepSpeed, &root.join(step)).unwrap().torn;
    assert!(torn("global_step20").unwrap().contains("begin at step 0"));
    fs::write(root.join("latest"), "global_step20").unwrap();
    assert_eq!(torn("global_step20"), None);
    assert!(torn("global_step10").unwrap().ends_with("says `global_step20`"));
    // Killed while it saved: `latest` still names the one before.
    fs::write(root.join("latest"), "global_step10\n").unwrap();
    fs::write(root.join("global_step20/mp_rank_00_model_states.pt"), "PK").unwrap();
    assert_eq!(torn("global_step10"), None);
    assert!(torn("global_step20").is_some());
    fs::rename(
        root.join("global_step10/zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        root.join("global_step10/zero_pp_rank_1_mp_rank_00_optim_states.pt"),
    )
    .unwrap();
    assert!(torn("global_step10").unwrap().contains("no optimizer state of rank 0"));
}

/// A safetensors file with one tensor that ends at `end`.
fn safetensors(path: &Path, end: u64, data: usize) {
    let header = format!(r#"{{"w":{{"dtype":"F32","shape":[1],"data_offsets":[0,{end}]}}}}"#);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_hugging_face_checkpoint_lacks_nothing_that_a_resume_needs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoint-6");
    torch_file(&path.join("optimizer.pt"));
    torch_file(&path.join("scheduler.pt"));
    fs::write(path.join("trainer_state.json"), r#"{"global_step": 6}"#).unwrap();
    let weights = path.join("model.safetensors");
    let look = || forms::look(Form::HfTrainer, &path).unwrap();
    assert!(look().torn.unwrap().contains("safetensors"));
    safetensors(&weights, 4, 4);
    assert_eq!((look().step, look().torn), (Some(6), None));
    safetensors(&weights, 4, 3);
    assert!(look().torn.unwrap().contains("should be"));
    safetensors(&weights, u64::MAX, 4);
    assert!(look().torn.unwrap().contains("should be"));
    fs::remove_file(&weights).unwrap();
    torch_file(&path.join("pytorch_model-00001-of-00002.bin"));
    let index = r#"{"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}}"#;
    fs::write(path.join("pytorch_model.bin.index.json"), index).unwrap();
    assert!(look().torn.unwrap().ends_with("has no `pytorch_model-00002-of-00002.bin`"));
    torch_file(&path.join("pytorch_model-00002-of-00002.bin"));
    assert_eq!(look().torn, None);
    fs::remove_file(path.join("optimizer.pt")).unwrap();
    assert!(look().torn.unwrap().ends_with("has no `optimizer.pt`"));
}

#[test]
fn all_are_found_once_the_oldest_first_and_the_newest_whole_one_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for (at, name) in ["b.pt", "checkpoints/a.pt", "c [1].ckpt"].iter().enumerate() {
        torch_file(&root.join(name));
        let file = fs::File::options().write(true).open(root.join(name)).unwrap();
        file.file().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(at as u64)).unwrap();
    }
    fs::write(root.join("d.pt"), "").unwrap();
    let words = ["python", "t.py", "--out", "."].map(String::from).to_vec();
    let command = Command::understand(words, &Shelf::built_in().unwrap(), None, root).unwrap();
    let found = find(&command, root);
    let names: Vec<_> = found.iter().map(|one| one.path.file_name().unwrap().to_string_lossy()).collect();
    assert_eq!(names, ["b.pt", "a.pt", "c [1].ckpt", "d.pt"]);
    assert_eq!(latest_whole(&found).unwrap().path, found[2].path);
}
