//! Which MLX this is, where it computes, and the memory it holds.

use std::ffi::{CStr, c_char};
use std::path::PathBuf;

use serde::Serialize;

use super::error::Result;
use super::raw;

/// Where MLX computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The processor.
    Cpu,
    /// A GPU under Metal.
    Metal,
    /// A GPU under CUDA.
    Cuda,
}

/// What multiplies matrices of floats on the CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum Blas {
    /// OpenBLAS, loaded in front of the BLAS that MLX is linked with.
    OpenBlas {
        /// The library.
        library: PathBuf,
        /// Threads that compute one product.
        threads: usize,
    },
    /// The reference BLAS of the Linux wheels, about twenty times slower.
    Reference,
    /// Apple's.
    Accelerate,
}

/// Which MLX this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Info {
    /// MLX's version.
    pub version: String,
    /// The file of libmlx that is loaded.
    pub library: PathBuf,
    /// The default device.
    pub device: Device,
    /// Whether this MLX was built for a GPU and found none.
    pub lacks_gpu: bool,
    /// What multiplies matrices on the CPU. Asking loads it.
    pub blas: Blas,
}

/// Says which MLX this is. Starts OpenBLAS.
///
/// # Errors
/// What MLX says when it cannot tell its device.
pub fn info() -> Result<Info> {
    let lacks_gpu = raw::init();
    // SAFETY: no arguments; gives null or a string that lives as long as the library.
    let library = path(unsafe { mlx_sys::lathe_mlx_library() }).unwrap_or_default();
    Ok(Info { version: version()?, library, device: device()?, lacks_gpu, blas: blas() })
}

fn version() -> Result<String> {
    // SAFETY: makes an empty string.
    let mut text = unsafe { mlx_sys::mlx_string_new() };
    // SAFETY: `text` is a string of ours.
    let status = unsafe { mlx_sys::mlx_version(&mut text) };
    let version = raw::check(status).map(|()| {
        // SAFETY: MLX's strings end in NUL, and this one is freed only below.
        unsafe { CStr::from_ptr(mlx_sys::mlx_string_data(text)) }.to_string_lossy().into()
    });
    // SAFETY: made above, freed once.
    unsafe { mlx_sys::mlx_string_free(text) };
    version
}

/// The default device: a GPU where MLX found one.
///
/// # Errors
/// What MLX says when it cannot tell.
pub fn device() -> Result<Device> {
    raw::init();
    Ok(match mlx_rs::Device::try_default()?.get_type()? {
        mlx_rs::DeviceType::Cpu => Device::Cpu,
        mlx_rs::DeviceType::Gpu if cfg!(target_os = "macos") => Device::Metal,
        mlx_rs::DeviceType::Gpu => Device::Cuda,
    })
}

/// Makes the CPU the default device, for what has to be computed there.
pub fn use_cpu() {
    raw::init();
    mlx_rs::Device::set_default(&mlx_rs::Device::cpu());
}

fn blas() -> Blas {
    if cfg!(target_os = "macos") {
        return Blas::Accelerate;
    }
    // SAFETY: no arguments; gives null or a string that lives as long as the library.
    match path(unsafe { mlx_sys::lathe_blas_library() }) {
        Some(library) => Blas::OpenBlas { library, threads: blas_threads() },
        None => Blas::Reference,
    }
}

/// The number of threads that compute one product of matrices of floats on the CPU.
pub fn blas_threads() -> usize {
    // SAFETY: no arguments.
    usize::try_from(unsafe { mlx_sys::lathe_blas_threads() }).unwrap_or(1)
}

/// Sets that number: one when several streams compute at once, the machine's cores (the default)
/// when one does.
pub fn set_blas_threads(threads: usize) {
    let threads = i32::try_from(threads.max(1)).unwrap_or(i32::MAX);
    // SAFETY: OpenBLAS bounds the number itself.
    unsafe { mlx_sys::lathe_blas_set_threads(threads) };
}

fn path(text: *const c_char) -> Option<PathBuf> {
    if text.is_null() {
        return None;
    }
    // SAFETY: dladdr's names end in NUL and live as long as the library they name.
    let path = PathBuf::from(unsafe { CStr::from_ptr(text) }.to_string_lossy().as_ref());
    Some(path.canonicalize().unwrap_or(path))
}

/// Bytes of MLX's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// In arrays.
    pub active: usize,
    /// The most there ever was in arrays.
    pub peak: usize,
    /// Kept for arrays to come.
    pub cached: usize,
}

/// How much memory MLX holds.
///
/// # Errors
/// What MLX says when it cannot tell.
pub fn memory() -> Result<Memory> {
    raw::init();
    Ok(Memory {
        active: mlx_rs::memory::active_memory()?,
        peak: mlx_rs::memory::peak_memory()?,
        cached: mlx_rs::memory::cache_memory()?,
    })
}

/// Gives memory that is kept for arrays to come back to the system.
///
/// # Errors
/// What MLX says when it cannot.
pub fn clear_cache() -> Result<()> {
    raw::init();
    Ok(mlx_rs::memory::clear_cache()?)
}

/// Bounds the memory that MLX keeps for arrays to come, and gives the bound there was.
///
/// # Errors
/// What MLX says when it cannot.
pub fn set_cache_limit(bytes: usize) -> Result<usize> {
    raw::init();
    Ok(mlx_rs::memory::set_cache_limit(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_in_use_is_recent_enough() {
        let info = info().unwrap();
        let version: semver::Version = info.version.parse().unwrap();
        assert!(version >= semver::Version::new(0, 32, 2), "{version} clips mxfp8");
        assert!(info.library.is_file(), "{}", info.library.display());
    }
}
