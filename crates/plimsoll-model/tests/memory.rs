//! What reading and writing weights costs, counted by the allocator: nothing that grows with the weights.

mod folders;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use folders::raw_file;
use plimsoll_model::{
    AdapterFolder, Existing, ModelFolder, TensorView, WeightFiles, merge, save_adapter, save_model, write_safetensors,
};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::trained::LoraSpec;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator with the arguments as they came; only numbers are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the pointer came from `alloc` above, so from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that were held at once during `work`, beyond what was held before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = work();
    (PEAK.load(Relaxed) - before, result)
}

/// One test, because the counters are the process's.
#[test]
fn weights_of_any_length_are_streamed_with_one_bounded_buffer() {
    let dir = tempfile::tempdir().unwrap();
    let shape = [8 << 10, 1 << 10];
    let mut weights = vec![0.5f32; shape[0] * shape[1]];
    let path = dir.path().join("big.safetensors");
    let mut file = fs_err::File::create(&path).unwrap();
    let (peak, _) = peak_of(|| {
        let tensors = [TensorView { name: "w", shape: &shape, data: &weights }];
        write_safetensors(&mut file, &[], &tensors).unwrap();
    });
    assert!(peak < 8 << 10, "writing 32 MiB held {peak} bytes");
    let (peak, opened) = peak_of(|| WeightFiles::open_file(&path).unwrap());
    assert!(peak < 16 << 10, "opening 32 MiB held {peak} bytes");
    let (peak, _) = peak_of(|| opened.fill("w", &mut weights).unwrap());
    assert_eq!(peak, 0, "reading f32 allocates nothing");

    let n = weights.len();
    let header = format!(r#"{{"h":{{"dtype":"BF16","shape":[{n}],"data_offsets":[0,{}]}}}}"#, 2 * n);
    raw_file(&path, &header, 2 * n);
    let opened = WeightFiles::open_file(&path).unwrap();
    let (peak, _) = peak_of(|| opened.fill("h", &mut weights).unwrap());
    assert_eq!(peak, 0, "widening bf16 allocates nothing");
    assert!(weights.iter().all(|x| *x == 0.0));

    // A head that equals its embedding table is compared to its end, within 1 MiB.
    let folder = dir.path().join("t5");
    fs_err::create_dir(&folder).unwrap();
    let mut config = folders::config();
    config["vocab_size"] = 200_000.into();
    folders::write_folder(&folder, &config);
    let spec = ModelFolder::open(&folder).unwrap().spec().clone();
    let params = spec.params();
    let data = folders::numbers(&params);
    let mut tensors = folders::views(&params, &data);
    tensors.push(TensorView { name: "lm_head.weight", ..tensors[0] });
    folders::write_file(&folder.join("model.safetensors"), &tensors);
    let (peak, (opened, _)) = peak_of(|| ModelFolder::open_with_weights(&folder).unwrap());
    assert!(opened.spec().t5().unwrap().tied);
    assert!((1 << 20..(1 << 20) + (128 << 10)).contains(&peak), "comparing 2 x 4.6 MiB held {peak} bytes");

    // Saving and merging hold one buffer of 256 KiB, and a module's factors (here 2 x 2 KiB).
    let folder = dir.path().join("llama");
    fs_err::create_dir(&folder).unwrap();
    let big = [("vocab_size", 100_000.into()), ("hidden_size", 64.into()), ("head_dim", 32.into())];
    folders::write_folder(&folder, &folders::changed(folders::decoder_config("llama"), &big));
    let spec = ModelFolder::open(&folder).unwrap().spec().clone();
    drop(folders::write_weights(&folder, &spec));
    let (opened, files) = ModelFolder::open_with_weights(&folder).unwrap();
    let lora = LoraSpec { r: 8, alpha: 8.0, dropout: 0.0, rslora: false, targets: vec!["q_proj".into()] };
    let (target, adapter) = (dir.path().join("saved"), dir.path().join("adapter"));
    let mut zeros = |_: &str, _: usize, out: &mut [f32]| {
        out.fill(0.0);
        Ok(())
    };
    save_adapter(&adapter, &lora, &spec, "x", &mut zeros, &folder, Existing::Refuse).unwrap();
    let adapter = AdapterFolder::open(&adapter).unwrap();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let (peak, _) = peak_of(|| {
            save_model(&target, opened.config(), &spec, dtype, &mut &files, &folder, Existing::Replace).unwrap();
        });
        assert!((256 << 10..320 << 10).contains(&peak), "saving 49 MiB as {dtype:?} held {peak} bytes");
        let (peak, _) = peak_of(|| merge(&opened, &files, &adapter, &target, dtype, Existing::Replace).unwrap());
        assert!((256 << 10..320 << 10).contains(&peak), "merging 49 MiB as {dtype:?} held {peak} bytes");
    }

    // Announced lengths allocate nothing that the file does not have.
    for announced in [1u64 << 20, 16 << 20, 1 << 40, u64::MAX] {
        fs_err::write(&path, announced.to_le_bytes()).unwrap();
        let (peak, result) = peak_of(|| WeightFiles::open_file(&path));
        assert!(result.is_err());
        assert!(peak < 4 << 10, "a file of 8 bytes announcing {announced} made us hold {peak} bytes");
    }
}
