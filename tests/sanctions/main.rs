//! Sanctions: what is taken back after a conviction, by whom and how far; and a steward that breaks its word is halted
//! on, while one that keeps it is never convicted.

mod halt;
mod misconduct;
mod past;
mod records;
mod rewind;
