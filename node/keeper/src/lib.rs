//! What a member and the steward do alike for others: they keep parts, and divide what several members want of them at once.

pub mod intake;
pub mod shares;
