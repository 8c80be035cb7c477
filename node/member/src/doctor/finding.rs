//! What was looked at, what was found, and what to do next where that needs care.

/// One line of an examination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    subject: &'static str,
    found: String,
    /// What to do next; `None` where all is well.
    remedy: Option<String>,
}

impl Finding {
    /// All is well.
    pub fn good(subject: &'static str, found: impl Into<String>) -> Self {
        Self { subject, found: found.into(), remedy: None }
    }

    /// Something needs care: what to do about it is `remedy`.
    pub fn care(subject: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { subject, found: found.into(), remedy: Some(remedy.into()) }
    }

    /// Whether all is well.
    pub fn is_good(&self) -> bool {
        self.remedy.is_none()
    }

    /// For people.
    pub fn line(&self) -> String {
        let Self { subject, found, remedy } = self;
        match remedy {
            None => format!("{subject:<11} good  {found}"),
            Some(remedy) => format!("{subject:<11} CARE  {found}: {remedy}"),
        }
    }
}
