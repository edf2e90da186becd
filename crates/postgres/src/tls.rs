//! libpq's sslmode words as one rustls configuration (PostgreSQL manual, "SSL Support"), for both
//! the admin connection and the slot stream.
//!
//! As in libpq: `require` with a root certificate verifies the chain, as `verify-ca` does; the
//! defaults are the files in `~/.postgresql`; a self-signed server certificate with `CA:TRUE` is
//! trusted if that very certificate is in `sslrootcert`. Unlike libpq, `verify-full` reads the
//! name from the subject alternative names only, not from the common name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::url::UrlError;

/// Whether a session is encrypted, and what is asked of the server's certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SslMode {
    Disable,
    Allow,
    #[default]
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl SslMode {
    pub(crate) fn parse(word: &str) -> Result<SslMode, UrlError> {
        Ok(match word {
            "disable" => SslMode::Disable,
            "allow" => SslMode::Allow,
            "prefer" => SslMode::Prefer,
            "require" => SslMode::Require,
            "verify-ca" => SslMode::VerifyCa,
            "verify-full" => SslMode::VerifyFull,
            _ => {
                let problem = "expected disable, allow, prefer, require, verify-ca or verify-full".to_owned();
                return Err(UrlError::Value { name: "sslmode", problem });
            }
        })
    }

    /// The ways to try, in order: encrypted (true) or plain.
    pub(crate) fn attempts(self) -> &'static [bool] {
        match self {
            SslMode::Disable => &[false],
            SslMode::Allow => &[false, true],
            SslMode::Prefer => &[true, false],
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => &[true],
        }
    }
}

/// What the connection string says about TLS.
#[derive(Debug, Default)]
pub(crate) struct TlsSettings {
    pub(crate) mode: SslMode,
    pub(crate) root: Option<String>,
    pub(crate) certificate: Option<String>,
    pub(crate) key: Option<String>,
}

impl TlsSettings {
    /// Reads the files; a file that is named and cannot be used is an error.
    pub(crate) fn client_config(&self) -> Result<Arc<ClientConfig>, UrlError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Arc::new(self.verifier(&provider)?);
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| UrlError::Value { name: "sslmode", problem: e.to_string() })?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match self.client_certificate()? {
            None => builder.with_no_client_auth(),
            Some((chain, key, path)) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|e| UrlError::Certificate { name: "sslcert", path, problem: e.to_string() })?,
        };
        Ok(Arc::new(config))
    }

    fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Verifier, UrlError> {
        let mut roots = RootCertStore::empty();
        let mut trusted = Vec::new();
        match self.roots()? {
            Roots::None => {
                return Ok(Verifier { chain: None, name: false, trusted, provider: provider.clone() });
            }
            Roots::System => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
            Roots::File(path) => {
                trusted = certificates("sslrootcert", &path)?;
                roots.add_parsable_certificates(trusted.iter().cloned());
            }
        }
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|e| UrlError::Value { name: "sslrootcert", problem: e.to_string() })?;
        let name = self.mode == SslMode::VerifyFull;
        Ok(Verifier { chain: Some(chain), name, trusted, provider: provider.clone() })
    }

    fn roots(&self) -> Result<Roots, UrlError> {
        let verifies = matches!(self.mode, SslMode::VerifyCa | SslMode::VerifyFull);
        match self.root.as_deref() {
            Some("system") if self.mode == SslMode::VerifyFull => Ok(Roots::System),
            Some("system") => Err(UrlError::Value {
                name: "sslrootcert",
                problem: "\"system\" needs sslmode=verify-full".to_owned(),
            }),
            Some(path) => Ok(Roots::File(PathBuf::from(path))),
            None => match home_file("root.crt") {
                Some(path) => Ok(Roots::File(path)),
                None if verifies => Err(UrlError::Value {
                    name: "sslrootcert",
                    problem: "~/.postgresql/root.crt does not exist; name a file of root certificates, \
                              or \"system\" with sslmode=verify-full"
                        .to_owned(),
                }),
                None => Ok(Roots::None),
            },
        }
    }

    fn client_certificate(&self) -> Result<Option<ClientCertificate>, UrlError> {
        let Some(path) = self.certificate.clone().map(PathBuf::from).or_else(|| home_file("postgresql.crt"))
        else {
            return Ok(None);
        };
        let key_path = self.key.clone().map(PathBuf::from).or_else(|| home_file("postgresql.key"));
        let key_path = key_path.ok_or_else(|| UrlError::Value {
            name: "sslkey",
            problem: "a client certificate needs a key, and ~/.postgresql/postgresql.key does not exist"
                .to_owned(),
        })?;
        let key = PrivateKeyDer::from_pem_file(&key_path).map_err(|e| unusable("sslkey", &key_path, &e))?;
        Ok(Some((certificates("sslcert", &path)?, key, path.display().to_string())))
    }
}

type ClientCertificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, String);

enum Roots {
    None,
    System,
    File(PathBuf),
}

fn certificates(name: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, UrlError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(list) if list.is_empty() => Err(unusable(name, path, &"no certificate in it")),
        Ok(list) => Ok(list),
        Err(e) => Err(unusable(name, path, &e)),
    }
}

fn unusable(name: &'static str, path: &Path, problem: &dyn std::fmt::Display) -> UrlError {
    UrlError::Certificate { name, path: path.display().to_string(), problem: problem.to_string() }
}

fn home_file(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("HOME")?).join(".postgresql").join(name);
    path.exists().then_some(path)
}

/// Asks of the server's certificate what the sslmode asks: nothing, the chain, or chain and name.
#[derive(Debug)]
struct Verifier {
    chain: Option<Arc<WebPkiServerVerifier>>,
    name: bool,
    trusted: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        let verdict = chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verdict {
            // The chain is checked first: a wrong name means a right chain.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.name => Ok(ServerCertVerified::assertion()),
            // The dates are checked before the CA flag.
            Err(rustls::Error::InvalidCertificate(CertificateError::Other(why)))
                if format!("{why:?}").contains("CaUsedAsEndEntity")
                    && self.trusted.iter().any(|root| root.as_ref() == end_entity.as_ref()) =>
            {
                if self.name {
                    rustls::client::verify_server_name(
                        &ParsedCertificate::try_from(end_entity)?,
                        server_name,
                    )?;
                }
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
