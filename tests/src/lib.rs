//! What the end-to-end tests share: the simulator, and real processes that are killed when dropped.

pub mod manifests;
pub mod oracle;
pub mod processes;
pub mod settings;
pub mod sim;
