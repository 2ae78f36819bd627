package format

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"filippo.io/age"

	"etcd-wrapper/internal/disk"
)

// maxKeyFile limits a key file, in bytes.
const maxKeyFile = 1 << 20

func (k *Keys) recipients() ([]age.Recipient, error) {
	return load("--backup-recipients", k.files.Recipients, parseRecipients)
}

func (k *Keys) identities() ([]age.Identity, error) {
	return load("--backup-identities", k.files.Identities, parseIdentities)
}

func (k *Keys) signingKey() (ed25519.PrivateKey, error) {
	return load("--backup-signing-key", k.files.SigningKey, parseSigningKey)
}

// trustedKeys returns the trusted keys by id.
func (k *Keys) trustedKeys() (map[string]ed25519.PublicKey, error) {
	return load("--backup-trusted-keys", k.files.TrustedKeys, parseTrustedKeys)
}

// load reads a key file. Without a path it returns nothing.
func load[T any](flag, path string, parse func([]byte) (T, error)) (keys T, err error) {
	if path == "" {
		return keys, nil
	}
	content, err := disk.Read(path, maxKeyFile)
	if err != nil {
		return keys, fmt.Errorf("%s: cannot read %s: %w", flag, path, err)
	}
	if keys, err = parse(content); err != nil {
		return keys, fmt.Errorf("%s: %s %w", flag, path, err)
	}
	return keys, nil
}

func parseRecipients(content []byte) ([]age.Recipient, error) {
	keys, err := age.ParseRecipients(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("is not a file of age recipients (one per line, starting with age1): %w", err)
	}
	return keys, nil
}

func parseIdentities(content []byte) ([]age.Identity, error) {
	keys, err := age.ParseIdentities(bytes.NewReader(content))
	if err != nil { // the error may contain parts of the key
		return nil, errors.New("is not a file of age identities (one per line, starting with AGE-SECRET-KEY-)")
	}
	return keys, nil
}

func parseSigningKey(content []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(content)
	if block != nil && block.Type == "PRIVATE KEY" {
		parsed, _ := x509.ParsePKCS8PrivateKey(block.Bytes) // the error may contain parts of the key
		if key, is := parsed.(ed25519.PrivateKey); is {
			return key, nil
		}
	}
	return nil, errors.New("is not an ed25519 private key (PKCS#8 in PEM, as of openssl genpkey -algorithm ed25519)")
}

func parseTrustedKeys(content []byte) (map[string]ed25519.PublicKey, error) {
	keys := map[string]ed25519.PublicKey{}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		key, is := parsed.(ed25519.PublicKey)
		if err != nil || !is || block.Type != "PUBLIC KEY" {
			return nil, fmt.Errorf("has a %s that is not an ed25519 public key (PKIX in PEM, as of openssl pkey -pubout)", block.Type)
		}
		keys[keyName(key)] = key
	}
	if len(keys) == 0 {
		return nil, errors.New("has no ed25519 public key (PKIX in PEM, as of openssl pkey -pubout)")
	}
	return keys, nil
}
