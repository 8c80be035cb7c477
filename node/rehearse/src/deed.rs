//! What an attack or a lie does, as lists of them say it.

/// Without the "Peer that" with which each of their files begins: in a list it goes without saying.
pub(super) fn deed(about: &str) -> &str {
    about.strip_prefix("Peer that ").unwrap_or(about)
}
