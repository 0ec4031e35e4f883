//! `to = from`, some columns of each row.

use super::attention::Columns;

/// Copies `width` columns of `count` rows. The tensors are apart.
pub fn copy_columns(count: usize, width: usize, from: Columns, to: Columns) {
    for row in 0..count {
        // SAFETY: the plan gave both tensors these rows, apart from each other; one op runs at a time.
        let (from, to) = unsafe {
            (from.data.slice(row * from.stride + from.start, width), to.data.slice(row * to.stride + to.start, width))
        };
        to.copy_from_slice(from);
    }
}
