//! What a rule is given.

/// One member's contribution to a block.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Q: the sum of its leaves.
    pub q: &'a [i32],
    /// Leaves in the sum; the rule takes x = Q/m.
    pub m: u32,
    /// Weight, from [`super::weights`].
    pub weight: u64,
}
