//! Memory for weights that every token reads: in huge pages, where the system gives them.
//!
//! A product reads weights faster than the processor finds pages of 4 KiB: on a virtual machine,
//! where each page is looked up twice, one core reads half as fast through a mapped file as from
//! huge pages. So weights are copied, once. Where there are no huge pages, or not enough memory,
//! they stay in the file's mapping, which costs nothing.

use bytes::{BufMut, Bytes, BytesMut};

use crate::system;

/// Bytes of memory that is asked for at once. Of the last one only what is used is ever there.
const CHUNK: usize = 64 << 20;

/// Where a tensor begins: at a line of the cache.
const ALIGNMENT: usize = 64;

/// Takes the bytes of weights in.
#[derive(Debug, Default)]
pub struct Memory {
    chunk: BytesMut,
    /// Bytes that may be asked for still.
    left: usize,
}

impl Memory {
    /// As much as half of what is free now.
    pub fn new() -> Memory {
        if !system::gives_huge_pages() {
            return Memory::default();
        }
        let left = usize::try_from(crate::write::free_memory() / 2).unwrap_or(usize::MAX);
        Memory { chunk: BytesMut::new(), left }
    }

    /// The same bytes, where they are read fastest.
    pub fn hold(&mut self, bytes: &Bytes) -> Bytes {
        if bytes.is_empty() || bytes.len() > self.left {
            return bytes.clone();
        }
        self.left -= bytes.len();
        let padding = self.chunk.spare_capacity_mut().as_ptr().align_offset(ALIGNMENT);
        if padding + bytes.len() > self.chunk.capacity() {
            self.chunk = BytesMut::with_capacity(CHUNK.max(bytes.len() + ALIGNMENT));
            system::ask_for_huge_pages(self.chunk.spare_capacity_mut());
        }
        let padding = self.chunk.spare_capacity_mut().as_ptr().align_offset(ALIGNMENT);
        self.chunk.put_bytes(0, padding);
        self.chunk.extend_from_slice(bytes);
        self.chunk.split().freeze().slice(padding..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_what_they_are_and_share_chunks() {
        let mut memory = Memory { left: 2 * CHUNK, ..Memory::default() };
        let tensors: Vec<Bytes> =
            [1, 100, 0, 4096].map(|length| Bytes::from(vec![length as u8; length])).into();
        let held: Vec<Bytes> = tensors.iter().map(|bytes| memory.hold(bytes)).collect();
        assert_eq!(held, tensors);
        let starts = [0, 1, 3].map(|i: usize| held[i].as_ptr() as usize);
        assert!(starts.iter().all(|start| start % ALIGNMENT == 0));
        assert_eq!(starts[2] - starts[0], 3 * ALIGNMENT);
        let large = Bytes::from(vec![7; CHUNK + 5]);
        assert_ne!(memory.hold(&large).as_ptr(), large.as_ptr());
        assert_eq!(memory.hold(&tensors[1]), tensors[1]);
        // What is too large for what is left stays where it is.
        assert_eq!(memory.hold(&large).as_ptr(), large.as_ptr());
    }
}
