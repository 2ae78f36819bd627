package etcdconf

import (
	"encoding/json"

	"go.etcd.io/etcd/server/v3/embed"
)

// settings is the typed view of a document: etcd's exported configuration and the keys that exist in the file only.
type settings struct {
	embed.Config
	fileKeys
	warnings []string // sentences about what is taken, but odd
}

// fileKeys are the keys of etcd's file format that embed.Config has no tag for. The struct that etcd reads them into is not
// exported; a test compares this one with it.
type fileKeys struct {
	ListenPeer      string `json:"listen-peer-urls"`
	ListenClient    string `json:"listen-client-urls"`
	ListenHTTP      string `json:"listen-client-http-urls"`
	AdvertisePeer   string `json:"initial-advertise-peer-urls"`
	AdvertiseClient string `json:"advertise-client-urls"`

	Origins        string `json:"cors"`
	AcceptedHosts  string `json:"host-whitelist"`
	ServerFeatures string `json:"feature-gates"`

	ClientSecurity security `json:"client-transport-security"`
	PeerSecurity   security `json:"peer-transport-security"`
}

// view decodes a sifted document over etcd's defaults.
func view(document map[string]any) (*settings, error) {
	asJSON, err := json.Marshal(document)
	if err != nil {
		return nil, problem("", "cannot be encoded: %w", err)
	}
	s := &settings{Config: *embed.NewConfig()}
	if err := json.Unmarshal(asJSON, s); err != nil {
		return nil, problem("", "cannot be decoded: %w", err)
	}
	return s, nil
}

// check goes through the values in an order that lets later checks rely on earlier ones.
func (s *settings) check() error {
	for _, check := range []func() error{
		s.checkDirectories,
		s.checkURLs,
		s.checkListeners,
		s.checkOrigins,
		s.checkMembership,
		s.checkClientSecurity,
		s.checkPeerSecurity,
		s.checkTLSVersions,
		s.checkTiming,
		s.checkTracing,
		s.checkCompaction,
		s.checkFeatures,
		s.checkLogLevel,
		s.checkAuthToken,
		s.checkV2Deprecation,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}
