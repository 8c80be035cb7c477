//! The certificate of a relay: the one that the steward has said over its channel, and no other.

use std::sync::Mutex;

use muster_core::lock::lock;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerIncompatible, SignatureScheme};

/// Takes one certificate, whatever it says and whoever signed it, and TLS 1.3 alone: no relay speaks an older one.
#[derive(Debug)]
pub(crate) struct Pinned {
    certificate: Mutex<Vec<u8>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    pub(crate) fn new(certificate: Vec<u8>) -> Self {
        let algorithms = ring::default_provider().signature_verification_algorithms;
        Self { certificate: Mutex::new(certificate), algorithms }
    }

    /// Takes this one from now on; whether it is another one.
    pub(crate) fn set(&self, certificate: Vec<u8>) -> bool {
        let mut pinned = lock(&self.certificate);
        let anew = *pinned != certificate;
        *pinned = certificate;
        anew
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if shown.as_ref() == lock(&self.certificate).as_slice() {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::ServerDoesNotSupportTls12Or13.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chan_28_a_relay_shows_the_certificate_that_the_steward_has_said() {
        let certificate = || {
            let made = rcgen::generate_simple_self_signed(vec!["muster".to_owned()]).unwrap();
            made.cert.der().clone()
        };
        let (own, other) = (certificate(), certificate());
        let pinned = Pinned::new(own.to_vec());
        let takes = |shown| {
            let name = ServerName::try_from("muster").unwrap();
            pinned.verify_server_cert(shown, &[], &name, &[], UnixTime::now()).is_ok()
        };
        assert!(takes(&own) && !takes(&other));
        assert!(!pinned.set(own.to_vec()) && pinned.set(other.to_vec()), "after a restart of the steward");
        assert!(takes(&other) && !takes(&own));
    }
}
