//! Every spelling that was ever written, and its figures.

use proptest::prelude::*;

use super::*;

fn mib(text: &str) -> Option<Bytes> {
    amount(text)
}

#[test]
fn the_message_of_torch_2_is_read_to_the_last_figure() {
    let report = CudaReport::parse(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.35 GiB. GPU 1 has a total capacity of 23.64 GiB of \
         which 512.00 MiB is free. Process 4711 has 3.50 GiB memory in use. Including non-PyTorch memory, this process has \
         19.62 GiB memory in use. Of the allocated memory 18.02 GiB is allocated by PyTorch, with 30.00 MiB allocated in \
         private pools (e.g., CUDA Graphs), and 1.10 GiB is reserved by PyTorch but unallocated. If reserved but \
         unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
    )
    .unwrap();
    assert_eq!((report.form, report.gpu, report.backend.as_str()), (CardForm::Allocator, Some(1), "CUDA"));
    assert_eq!((report.requested, report.total, report.free), (mib("1.35 GiB"), mib("23.64 GiB"), mib("512.00 MiB")));
    assert_eq!((report.allocated, report.unallocated), (mib("18.02 GiB"), mib("1.10 GiB")));
    assert_eq!(report.this_process, mib("19.62 GiB"));
    assert_eq!(report.others, [Neighbour { pid: 4711, held: amount("3.50 GiB").unwrap() }]);
    assert_eq!(report.reserved, Some(Bytes(report.allocated.unwrap().0 + report.unallocated.unwrap().0)));
    assert!(report.is_for_a_neighbour(&[]) && !report.is_for_a_neighbour(&[4711]));
}

#[test]
fn older_messages_are_read_too() {
    let old = CudaReport::parse(
        "RuntimeError: CUDA out of memory. Tried to allocate 128.00 MiB (GPU 0; 11.17 GiB total capacity; 9.91 GiB already \
         allocated; 69.56 MiB free; 10.73 GiB reserved in total by PyTorch)",
    )
    .unwrap();
    assert_eq!((old.gpu, old.total, old.reserved), (Some(0), mib("11.17 GiB"), mib("10.73 GiB")));
    assert!(old.is_fragmented(), "0.82 of 11.17 GiB are held and not used");
    let older = CudaReport::parse(
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity; 6.60 GiB already allocated; 23.06 \
         MiB free; 17.91 MiB cached)",
    )
    .unwrap();
    assert_eq!((older.unallocated, older.allocated), (mib("17.91 MiB"), mib("6.60 GiB")));
    let typo = CudaReport::parse(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 12.00 GiB \
         of which 4.62 GiB is free.",
    )
    .unwrap();
    assert!(typo.had_more_free() && typo.is_fragmented());
    let allowed = CudaReport::parse(
        "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 12.00 GiB total capacity; 4.00 GiB already allocated; 7.00 GiB \
         free; 6.00 GiB allowed; 4.10 GiB reserved in total by PyTorch)",
    )
    .unwrap();
    assert_eq!((allowed.allowed, allowed.reserved), (mib("6.00 GiB"), mib("4.10 GiB")));
}

#[test]
fn drivers_and_other_back_ends_are_known_and_masks_are_told_apart() {
    for line in [
        "torch.AcceleratorError: CUDA error: out of memory",
        "RuntimeError: CUDA driver error: out of memory",
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCStorage.cu:58",
        "RuntimeError: CUDA error 2: out of memory",
        "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2 'out of memory'",
        "Cuda failure 'out of memory'",
        "F0000 cuda_driver.cc: failed: CUDA_ERROR_OUT_OF_MEMORY",
        "Error out of memory at line 380 in file /src/csrc/pythonInterface.cpp",
        "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "RuntimeError: HIP error: out of memory",
    ] {
        assert_eq!(CudaReport::parse(line).map(|report| report.form), Some(CardForm::Driver), "{line}");
    }
    for line in [
        "HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.98 GiB of which 1.00 GiB is free.",
        "XPU out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.56 GiB.",
        "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB, max allowed: 9.07 GB).",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512 bytes.",
    ] {
        assert_eq!(CudaReport::parse(line).map(|report| report.form), Some(CardForm::Allocator), "{line}");
    }
    for line in [
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
    ] {
        assert_eq!(CudaReport::parse(line).map(|report| report.form), Some(CardForm::Masked), "{line}");
    }
    for line in ["Killed", "MemoryError", "out of memory", "CUDA error: device-side assert triggered"] {
        assert_eq!(CudaReport::parse(line), None, "{line}");
    }
}

#[test]
fn a_request_of_an_exbibyte_is_corruption_and_impossible_figures_are_left_out() {
    let eb = CudaReport::parse("RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.").unwrap();
    assert_eq!((eb.form, eb.requested), (CardForm::Corrupt, None));
    let blind = CudaReport::parse(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free. \
         Process 9 has 17179869184.00 GiB memory in use. Including non-PyTorch memory, this process has 17179869184.00 GiB \
         memory in use.",
    )
    .unwrap();
    assert_eq!((blind.this_process, blind.others.len()), (None, 0));
}

proptest! {
    #[test]
    fn any_text_gives_an_answer(text in "\\PC{0,300}") {
        CudaReport::parse(&text);
    }

    #[test]
    fn any_shuffle_of_the_words_gives_an_answer_whose_figures_agree(
        words in proptest::collection::vec(prop::sample::select(vec![
            "CUDA out of memory. Tried to allocate ", "more than 1EB", "2.00 GiB", "99999999999999999999 GiB", "0 bytes", ". ",
            "GPU 0 has a total capacty of ", " of which ", " is free.", "Process 4 has ", " memory in use.", "(GPU 1; ",
            " total capacity; ", " already allocated; ", " free; ", " reserved in total by PyTorch)", "é", "....", "CUBLAS_STATUS_ALLOC_FAILED",
        ]), 0..24)
    ) {
        if let Some(report) = CudaReport::parse(&words.concat()) {
            report.is_fragmented();
            prop_assert!(report.held_by_others(&[4]) == Bytes::ZERO);
            if let (Some(total), Some(held)) = (report.total, report.this_process) {
                prop_assert!(held <= total);
            }
        }
    }
}
