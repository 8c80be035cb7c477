//! The verifier: audits contributions and drawn blocks, rechecks verdicts, and serves as a juror.

pub mod audits;
pub mod coins;
pub mod parts;
