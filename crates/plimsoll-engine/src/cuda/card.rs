//! A card: its context, one stream, and plain calls of the driver with our errors.

use std::ffi::c_void;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};

use super::error::CudaError;
use super::find;

/// An address on the card.
pub(crate) type Address = sys::CUdeviceptr;

/// An open card. One thread uses it, and made its context current.
#[derive(Debug)]
pub struct Card {
    device: sys::CUdevice,
    pub(crate) stream: sys::CUstream,
    name: String,
    capability: (i32, i32),
    driver: i32,
    processors: u32,
    shared_most: u32,
    total: u64,
}

// SAFETY: handles of the driver are good in every thread; the context is made current where the engine runs.
unsafe impl Send for Card {}

/// Takes from the context what no kernel of ours needs: stacks for calls that are not inlined, a heap, a buffer for prints.
/// Stacks alone are one for every thread that the card can run at a time: on an H200, 1024 bytes each are 248 MiB more than 64.
fn shrink_limits() {
    if std::env::vars_os().any(|(name, _)| WATCHED.iter().any(|begin| name.to_string_lossy().starts_with(begin))) {
        return;
    }
    use sys::CUlimit_enum::{CU_LIMIT_MALLOC_HEAP_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_STACK_SIZE};
    for (limit, bytes) in [(CU_LIMIT_STACK_SIZE, STACK), (CU_LIMIT_MALLOC_HEAP_SIZE, 0), (CU_LIMIT_PRINTF_FIFO_SIZE, 0)]
    {
        // SAFETY: the current context is ours. The driver rounds up to what it needs, or refuses, which is no harm.
        let _ = unsafe { sys::cuCtxSetLimit(limit, bytes) };
    }
}

/// How the names of variables begin by which a sanitizer or profiler gets into a program: what it adds to kernels needs stacks.
const WATCHED: [&str; 2] = ["NV_SANITIZER", "CUDA_INJECTION"];

/// Bytes of stack of a thread. With 64 the driver took up to 30 MiB more in the middle of some runs, as much as stacks of some 180
/// bytes are; with these it took none.
const STACK: usize = 192;

/// Turns the driver's answer into ours.
pub(crate) fn said<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, CudaError> {
    result.map_err(|e| {
        let text = |r: Result<&std::ffi::CStr, _>| r.map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
        let reason = format!("{}: {}", text(e.error_name()), text(e.error_string()));
        CudaError::Driver { call, reason }
    })
}

impl Card {
    /// Opens card `index`: libraries, context, stream.
    pub fn open(index: usize) -> Result<Card, CudaError> {
        find::open_libraries()?;
        said("cuInit", result::init())?;
        let count = said("cuDeviceGetCount", result::device::get_count())? as usize;
        if index >= count {
            return Err(CudaError::NoCard { index, count });
        }
        let device = said("cuDeviceGet", result::device::get(index as i32))?;
        let name = said("cuDeviceGetName", result::device::get_name(device))?;
        // SAFETY: a device that the driver gave us.
        let attribute = |which| said("cuDeviceGetAttribute", unsafe { result::device::get_attribute(device, which) });
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if (major, minor) < (7, 5) {
            return Err(CudaError::TooOld { name, major, minor });
        }
        let processors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
        let shared_most = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32;
        // SAFETY: the primary context of that device, made current here and given back when the card is dropped.
        let context = said("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        // SAFETY: the context was just retained.
        said("cuCtxSetCurrent", unsafe { result::ctx::set_current(context) })?;
        shrink_limits();
        let stream = said("cuStreamCreate", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        let mut driver = 0;
        // SAFETY: a number to write to.
        said("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut driver) }.result())?;
        let (_, total) = said("cuMemGetInfo", result::mem_get_info())?;
        let capability = (major, minor);
        let total = total as u64;
        Ok(Card { device, stream, name, capability, driver, processors, shared_most, total })
    }

    /// The identity of card `index`, as NVML writes it; no context is made.
    pub fn uuid_of(index: usize) -> Result<String, CudaError> {
        find::open_libraries()?;
        said("cuInit", result::init())?;
        let device = said("cuDeviceGet", result::device::get(index as i32))?;
        let bytes = said("cuDeviceGetUuid", result::device::get_uuid(device))?.bytes;
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
        let parts = [0..4, 4..6, 6..8, 8..10, 10..16].map(|range| hex[range].concat());
        Ok(format!("GPU-{}", parts.join("-")))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `sm_90` and the like.
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.capability.0, self.capability.1)
    }

    /// Compute capability.
    pub fn capability(&self) -> (i32, i32) {
        self.capability
    }

    /// Version of the driver's interface, as 13000 for 13.0.
    pub fn driver(&self) -> i32 {
        self.driver
    }

    /// Streaming multiprocessors.
    pub fn processors(&self) -> u32 {
        self.processors
    }

    /// Most shared memory of a block, in bytes.
    pub fn shared_most(&self) -> u32 {
        self.shared_most
    }

    /// Memory of the card.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Memory that nobody uses now.
    pub fn free(&self) -> Result<u64, CudaError> {
        Ok(said("cuMemGetInfo", result::mem_get_info())?.0 as u64)
    }

    /// Waits until everything asked for is done.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: our own stream.
        said("cuStreamSynchronize", unsafe { result::stream::synchronize(self.stream) })
    }

    /// Starts a clock on the stream.
    pub(crate) fn clock(&self) -> Result<StreamClock<'_>, CudaError> {
        let [start, end] = [StreamEvent::new()?, StreamEvent::new()?];
        start.record(self)?;
        Ok(StreamClock { card: self, start, end })
    }

    /// Copies to the card and waits.
    pub(crate) fn write<T>(&self, to: Address, from: &[T]) -> Result<(), CudaError> {
        // SAFETY: callers name a range of the arena; the slice lives until the copy is done.
        said("cuMemcpyHtoDAsync", unsafe { result::memcpy_htod_async(to, from, self.stream) })?;
        self.wait()
    }

    /// Copies pinned memory to the card in the stream's order; it must not be changed until that is done.
    pub(crate) fn send<T>(&self, to: Address, from: &[T]) -> Result<(), CudaError> {
        // SAFETY: callers name a range of the arena; pinned memory lives as long as the engine.
        said("cuMemcpyHtoDAsync", unsafe { result::memcpy_htod_async(to, from, self.stream) })
    }

    /// Copies from the card into pinned memory, in the stream's order.
    pub(crate) fn fetch<T>(&self, from: Address, to: &mut [T]) -> Result<(), CudaError> {
        // SAFETY: as above.
        said("cuMemcpyDtoHAsync", unsafe { result::memcpy_dtoh_async(to, from, self.stream) })
    }

    /// Copies from the card and waits.
    pub(crate) fn read<T>(&self, from: Address, to: &mut [T]) -> Result<(), CudaError> {
        // SAFETY: as above.
        said("cuMemcpyDtoHAsync", unsafe { result::memcpy_dtoh_async(to, from, self.stream) })?;
        self.wait()
    }

    /// Copies from one range of the card to another.
    pub(crate) fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: both ranges lie in the arena.
        said("cuMemcpyDtoDAsync", unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream) })
    }

    /// Zeroes bytes.
    pub(crate) fn zero(&self, at: Address, bytes: usize) -> Result<(), CudaError> {
        self.fill(at, bytes, 0)
    }

    /// Sets bytes.
    pub(crate) fn fill(&self, at: Address, bytes: usize, byte: u8) -> Result<(), CudaError> {
        // SAFETY: a range of the arena.
        said("cuMemsetD8Async", unsafe { result::memset_d8_async(at, byte, bytes, self.stream) })
    }

    /// Starts a kernel; `arguments` point at its parameters in order.
    pub(crate) fn launch(
        &self,
        call: &'static str,
        function: sys::CUfunction,
        grid: (u32, u32, u32),
        block: (u32, u32, u32),
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        // SAFETY: the executor passes what the kernel's own head comment asks for; all addresses are of the arena.
        said(call, unsafe { result::launch_kernel(function, grid, block, shared, self.stream, arguments) })
    }

    /// Starts a kernel whose blocks wait for each other: all of them run at a time, or the driver refuses.
    pub(crate) fn launch_together(
        &self,
        call: &'static str,
        function: sys::CUfunction,
        grid: (u32, u32, u32),
        block: (u32, u32, u32),
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        // SAFETY: as above.
        said(call, unsafe { result::launch_cooperative_kernel(function, grid, block, shared, self.stream, arguments) })
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // SAFETY: both are ours, and nothing runs any more once the stream is drained.
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// A point in the stream.
#[derive(Debug)]
pub(crate) struct StreamEvent(sys::CUevent);

// SAFETY: handles of the driver are good in every thread.
unsafe impl Send for StreamEvent {}

impl StreamEvent {
    /// One that has passed.
    pub fn new() -> Result<StreamEvent, CudaError> {
        said("cuEventCreate", result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)).map(StreamEvent)
    }

    /// Passes once everything asked for until now is done.
    pub fn record(&self, card: &Card) -> Result<(), CudaError> {
        // SAFETY: an event and a stream of ours.
        said("cuEventRecord", unsafe { result::event::record(self.0, card.stream) })
    }

    /// Seconds from another point to this one; both have passed.
    pub fn since(&self, start: &StreamEvent) -> Result<f32, CudaError> {
        // SAFETY: both are ours, were recorded and have passed.
        let milliseconds = said("cuEventElapsedTime", unsafe { result::event::elapsed(start.0, self.0) })?;
        Ok(milliseconds * 1e-3)
    }

    /// Waits until it has passed.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: an event of ours.
        said("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.0) }.result())
    }
}

impl Drop for StreamEvent {
    fn drop(&mut self) {
        // SAFETY: ours.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// Time on the card, from one point of its stream to another.
pub(crate) struct StreamClock<'a> {
    card: &'a Card,
    start: StreamEvent,
    end: StreamEvent,
}

impl StreamClock<'_> {
    /// Waits for what was launched since the clock was started: how long it took.
    pub fn seconds(self) -> Result<f32, CudaError> {
        self.end.record(self.card)?;
        self.card.wait()?;
        self.end.since(&self.start)
    }
}

/// Memory of the card, taken whole.
#[derive(Debug)]
pub(crate) struct DeviceArena {
    base: Address,
    bytes: usize,
}

impl DeviceArena {
    /// Takes and zeroes it.
    pub fn take(card: &Card, bytes: usize) -> Result<DeviceArena, CudaError> {
        let free = card.free()?;
        // SAFETY: freed once, when the arena is dropped.
        let base = unsafe { result::malloc_sync(bytes.max(256)) }.map_err(|e| CudaError::ArenaRefused {
            bytes: bytes as u64,
            free,
            reason: format!("{e:?}"),
        })?;
        let arena = DeviceArena { base, bytes: bytes.max(256) };
        card.zero(base, arena.bytes)?;
        card.wait()?;
        Ok(arena)
    }

    /// First address.
    pub fn base(&self) -> Address {
        self.base
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceArena {
    fn drop(&mut self) {
        // SAFETY: ours; the engine waits for the stream before it drops.
        let _ = unsafe { result::free_sync(self.base) };
    }
}

/// Host memory that the card copies from and to without a detour.
#[derive(Debug)]
pub(crate) struct Pinned {
    base: *mut u32,
    words: usize,
}

// SAFETY: owned memory.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Takes `words` words of four bytes, zeroed.
    pub fn take(words: usize) -> Result<Pinned, CudaError> {
        // SAFETY: freed once, when dropped.
        let base = said("cuMemHostAlloc", unsafe { result::malloc_host(words.max(1) * 4, 0) })?.cast::<u32>();
        // SAFETY: just taken, so many words.
        unsafe { base.write_bytes(0, words.max(1)) };
        Ok(Pinned { base, words: words.max(1) })
    }

    /// The words.
    pub fn words(&self) -> &[u32] {
        // SAFETY: ours.
        unsafe { std::slice::from_raw_parts(self.base, self.words) }
    }

    /// The words, to write.
    pub fn words_mut(&mut self) -> &mut [u32] {
        // SAFETY: ours alone.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.words) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: ours; no copy is under way once the engine has waited.
        let _ = unsafe { result::free_host(self.base.cast()) };
    }
}
