//! What newcomers weigh, who brings whom in, and what many keys of one person get: by the ledger's rules, in virtual
//! time, and as real processes.

mod admission;
mod beginnings;
mod chain;
mod echoes;
mod failures;
mod inspectors;
mod invitations;
mod pace;
mod trees;
mod weight;
