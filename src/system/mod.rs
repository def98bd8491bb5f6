//! system: what operating systems do in different ways, a file for each: how a part of a file is
//! read, how files come to the disk and who may read them, how much room there is, and huge pages.
//!
//! Every function is there on every system; where a system cannot do a thing, its function does
//! nothing, and says so. Nothing else in lathe asks on which system it runs, except for which GPU
//! MLX means (`src/mlx/device.rs`).

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(not(target_os = "linux"))]
pub use elsewhere::{
    ask_for_huge_pages, ask_for_huge_pages_everywhere, gives_huge_pages, start_writing_back,
    sync_files,
};
#[cfg(target_os = "linux")]
pub use linux::{
    ask_for_huge_pages, ask_for_huge_pages_everywhere, gives_huge_pages, start_writing_back,
    sync_files,
};
#[cfg(unix)]
pub use unix::{free_space, open_to_others, read_exact_at, readable_by_others, sync_dir};
#[cfg(windows)]
pub use windows::{free_space, open_to_others, read_exact_at, readable_by_others, sync_dir};
