//! Calls of MLX's C API: results instead of status codes, arrays instead of pointers.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use mlx_rs::{Array, Stream};

use super::error::{Error, Result};

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

unsafe extern "C" {
    /// mlx-rs's handler, which it exports. Ours passes every message on to it, so that mlx-rs's
    /// own results keep working.
    fn default_mlx_error_handler(message: *const c_char, data: *mut c_void);
}

extern "C" fn on_error(message: *const c_char, data: *mut c_void) {
    // SAFETY: MLX gives a string that ends in NUL and lives until this function returns.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    LAST.with(|last| *last.borrow_mut() = Some(text));
    // SAFETY: it takes the same arguments and copies the message.
    unsafe { default_mlx_error_handler(message, data) };
}

/// Puts our error handler in place: without one, MLX prints an error and ends the process. Makes the
/// CPU MLX's default device where it was built for a GPU and there is none; it does not look itself.
/// Gives whether that is so.
pub(super) fn init() -> bool {
    static LACKS_GPU: OnceLock<bool> = OnceLock::new();
    *LACKS_GPU.get_or_init(|| {
        // mlx-rs installs its handler at its first fallible call, and only then: have that behind
        // us, or it would replace ours later.
        let _ = mlx_rs::Device::cpu().get_index();
        // SAFETY: the handler is a function, and needs no data.
        unsafe { mlx_sys::mlx_set_error_handler(Some(on_error), std::ptr::null_mut(), None) };
        let lacks = lacks_gpu();
        if lacks {
            mlx_rs::Device::set_default(&mlx_rs::Device::cpu());
        }
        lacks
    })
}

/// Whether MLX would compute on a GPU that this machine has not.
fn lacks_gpu() -> bool {
    let wants = mlx_rs::Device::try_default().and_then(|device| device.get_type());
    let mut count = 0;
    // SAFETY: it writes one number.
    let status =
        unsafe { mlx_sys::mlx_device_count(&mut count, mlx_sys::mlx_device_type__MLX_GPU) };
    matches!(wants, Ok(mlx_rs::DeviceType::Gpu)) && (status != 0 || count == 0)
}

/// Turns a status code into a result, with the message that MLX gave for it.
pub(super) fn check(status: c_int) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    let message = LAST.with(|last| last.borrow_mut().take());
    Err(Error::mlx(&message.unwrap_or_else(|| format!("an operation failed with status {status}"))))
}

/// Runs an operation that makes an array.
pub(super) fn array(operation: impl FnOnce(*mut mlx_sys::mlx_array) -> c_int) -> Result<Array> {
    init();
    // SAFETY: makes an empty array, without arguments.
    let mut out = unsafe { mlx_sys::mlx_array_new() };
    let status = operation(&mut out);
    // SAFETY: `out` is an array of ours, empty or made by the operation; `Array` frees it.
    let out = unsafe { Array::from_ptr(out) };
    check(status).map(|()| out)
}

/// Runs an operation that makes several arrays.
pub(super) fn arrays(
    operation: impl FnOnce(*mut mlx_sys::mlx_vector_array) -> c_int,
) -> Result<Vec<Array>> {
    init();
    // SAFETY: makes an empty vector, without arguments.
    let mut vector = unsafe { mlx_sys::mlx_vector_array_new() };
    let status = operation(&mut vector);
    let all = check(status).and_then(|()| {
        // SAFETY: the vector is alive until it is freed below.
        let count = unsafe { mlx_sys::mlx_vector_array_size(vector) };
        // SAFETY: likewise, and the index is below its size.
        (0..count)
            .map(|i| array(|out| unsafe { mlx_sys::mlx_vector_array_get(out, vector, i) }))
            .collect()
    });
    // SAFETY: the arrays taken from it count their own references.
    unsafe { mlx_sys::mlx_vector_array_free(vector) };
    all
}

/// An array that may be absent, as the C API takes it.
pub(super) fn optional(array: Option<&Array>) -> mlx_sys::mlx_array {
    array.map_or(mlx_sys::mlx_array { ctx: std::ptr::null_mut() }, Array::as_ptr)
}

/// An integer that is present, as the C API takes it.
pub(super) fn int(value: i32) -> mlx_sys::mlx_optional_int {
    mlx_sys::mlx_optional_int { value, has_value: true }
}

/// The stream of `mlx_rs::with_stream`, else the default one of the calling thread.
pub(super) fn stream() -> Stream {
    init();
    Stream::thread_local_or_default()
}
