//! Weight matrices in the flat vector.

use std::ops::Range;

use muster_core::layout::Tensor;

use crate::turns::GradientSlice;

/// A weight matrix `[outputs, inputs]`, row-major in the flat vector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub offset: usize,
    pub outputs: usize,
    pub inputs: usize,
}

impl Matrix {
    /// Neighbours in the flat vector taken as one matrix: their outputs follow each other.
    pub(crate) fn joined(tensors: &[Tensor]) -> Self {
        let outputs = tensors.iter().map(|tensor| tensor.shape[0]).sum();
        Self { offset: tensors[0].offset, outputs, inputs: tensors[0].shape[1] }
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.outputs * self.inputs
    }

    /// As a part of the gradient.
    pub(crate) fn part(&self) -> GradientSlice {
        GradientSlice { range: self.range(), width: self.inputs }
    }
}
