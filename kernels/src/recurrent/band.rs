//! Some columns of an array.

use std::ops::Range;

/// Some columns of an array of rows without gaps, such as the queries among what one projection
/// gives.
#[derive(Clone, Copy, Debug)]
pub struct Band<'a> {
    data: &'a [f32],
    stride: usize,
    first: usize,
    width: usize,
}

impl<'a> Band<'a> {
    /// All columns of `data` `[rows, width]`.
    ///
    /// # Panics
    /// When the length does not fit.
    pub fn whole(data: &'a [f32], width: usize) -> Band<'a> {
        Band::new(data, width, 0..width)
    }

    /// Columns of `data` `[rows, stride]`.
    ///
    /// # Panics
    /// When the length does not fit, or there are no such columns.
    pub fn new(data: &'a [f32], stride: usize, columns: Range<usize>) -> Band<'a> {
        assert!(stride > 0 && data.len().is_multiple_of(stride), "rows");
        assert!(columns.start <= columns.end && columns.end <= stride, "columns");
        Band { data, stride, first: columns.start, width: columns.len() }
    }

    /// Rows of the array.
    pub fn rows(&self) -> usize {
        self.data.len() / self.stride
    }

    /// Columns of the band.
    pub fn width(&self) -> usize {
        self.width
    }

    /// A row.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline(always)]
    pub fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.stride + self.first..][..self.width]
    }

    /// Part of its columns.
    ///
    /// # Panics
    /// When there are no such columns.
    pub fn columns(&self, columns: Range<usize>) -> Band<'a> {
        assert!(columns.start <= columns.end && columns.end <= self.width, "columns");
        Band { first: self.first + columns.start, width: columns.len(), ..*self }
    }
}
