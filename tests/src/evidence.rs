//! The generated parts of `spec/tolerance.md`: which cheats tolerances let through, and how far gradients are apart.
//!
//! `cargo run --release -p e2e --features tch --bin evidence` makes them; every seed is fixed.

pub mod cheats;
pub mod setting;
pub mod tensors;
