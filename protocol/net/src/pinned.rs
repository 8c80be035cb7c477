//! The certificate of a relay: the one that whoever has it has said over its channel, and no other.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerIncompatible, SignatureScheme};

use crate::name::RelayNames;

/// Takes of each relay its own certificate, whatever it says and whoever signed it, and TLS 1.3 alone: no relay speaks an older
/// one.
#[derive(Debug)]
pub(crate) struct Pinned {
    names: RelayNames,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    pub(crate) fn new(names: RelayNames) -> Self {
        let algorithms = ring::default_provider().signature_verification_algorithms;
        Self { names, algorithms }
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match name {
            ServerName::DnsName(name) if self.names.shows(name.as_ref(), shown) => {
                Ok(ServerCertVerified::assertion())
            }
            _ => Err(CertificateError::ApplicationVerificationFailure.into()),
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
    use iroh::RelayUrl;
    use muster_core::codec::Bytes;
    use muster_core::ids::MemberId;
    use muster_core::messages::wire::RelayTerms;

    use super::*;
    use crate::name::Meeting;

    /// A relay of one member, at an address where another one has a relay as well.
    fn meeting(name: u8, certificate: &CertificateDer<'_>) -> Meeting {
        let certificate = Bytes::new(certificate.to_vec()).unwrap();
        let at = "127.0.0.1:7".parse().unwrap();
        Meeting { relay: MemberId([name; 32]), at, terms: RelayTerms { certificate, port: 0 } }
    }

    #[test]
    fn chan_28_a_relay_shows_the_certificate_that_its_member_has_said() {
        let certificate = || {
            let made = rcgen::generate_simple_self_signed(vec!["muster".to_owned()]).unwrap();
            made.cert.der().clone()
        };
        let (own, other, names) = (certificate(), certificate(), RelayNames::default());
        let pinned = Pinned::new(names.clone());
        let takes = |meeting: &Meeting, shown| {
            let url: RelayUrl = meeting.url().parse().unwrap();
            let name = ServerName::try_from(url.host_str().unwrap()).unwrap();
            pinned.verify_server_cert(shown, &[], &name, &[], UnixTime::now()).is_ok()
        };
        let (one, two) = (meeting(1, &own), meeting(2, &other));
        assert!(!takes(&one, &own), "nobody has said anything yet");
        assert!(names.know(&one) && names.know(&two) && !names.know(&one));
        assert!(takes(&one, &own) && takes(&two, &other));
        assert!(!takes(&one, &other) && !takes(&two, &own), "each its own");
        let anew = meeting(1, &certificate());
        assert!(names.know(&anew), "after a restart");
        assert!(!takes(&one, &own));
        names.forget(&two.relay);
        assert!(!takes(&two, &other));
        let number = ServerName::try_from("127.0.0.1").unwrap();
        assert!(pinned.verify_server_cert(&own, &[], &number, &[], UnixTime::now()).is_err());
    }
}
