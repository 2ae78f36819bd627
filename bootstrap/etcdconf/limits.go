package etcdconf

import (
	"crypto/tls"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/tlsutil"
	"go.etcd.io/etcd/pkg/v3/featuregate"
	"go.etcd.io/etcd/server/v3/auth"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/features"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"etcd-wrapper/bootstrap"
)

// Upper limits from embed.Config.Validate, where they have no exported names.
const (
	maxElectionMs   = 50000   // milliseconds
	maxSamplingRate = 1000000 // traced spans per million
)

// checkTiming applies the rules of embed.Config.Validate, but divides where etcd multiplies: its product overflows for a
// huge heartbeat, which then panics in raft.
func (s *settings) checkTiming() error {
	switch {
	case s.TickMs == 0:
		return problem("heartbeat-interval", "must be above 0 ms")
	case s.ElectionMs == 0 || s.ElectionMs > maxElectionMs:
		return problem("election-timeout", "must be from 1 to %d ms, not %d", maxElectionMs, s.ElectionMs)
	case s.TickMs > s.ElectionMs/5:
		return problem("election-timeout", "%d ms is less than five times the heartbeat-interval of %d ms", s.ElectionMs, s.TickMs)
	case s.CompactHashCheckTime == 0:
		return problem("compact-hash-check-time", "must be above 0")
	case s.ExperimentalCompactHashCheckTime == 0:
		return problem("experimental-compact-hash-check-time", "must be above 0")
	}
	return nil
}

// checkTracing bounds the samples per million spans, if there are any.
func (s *settings) checkTracing() error {
	if !s.EnableDistributedTracing && !s.ExperimentalEnableDistributedTracing {
		return nil
	}
	if s.DistributedTracingSamplingRatePerMillion > maxSamplingRate {
		return problem("distributed-tracing-sampling-rate", "must be at most %d", maxSamplingRate)
	}
	if s.ExperimentalDistributedTracingSamplingRatePerMillion > maxSamplingRate {
		return problem("experimental-distributed-tracing-sampling-rate", "must be at most %d", maxSamplingRate)
	}
	return nil
}

// checkCompaction reads the retention as etcd does when it starts: a number means hours or revisions, else it is a duration.
func (s *settings) checkCompaction() error {
	const key = "auto-compaction-retention"
	periodic := s.AutoCompactionMode == embed.CompactorModePeriodic
	if !periodic && s.AutoCompactionMode != embed.CompactorModeRevision {
		return problem("auto-compaction-mode", "must be periodic or revision, not %s", quote(s.AutoCompactionMode))
	}
	if s.AutoCompactionRetention == "" {
		return nil
	}
	if n, err := strconv.Atoi(s.AutoCompactionRetention); err == nil && n >= 0 {
		if periodic && n > int(math.MaxInt64/time.Hour) {
			return problem(key, "%d hours are too long", n)
		}
		return nil
	}
	switch d, err := time.ParseDuration(s.AutoCompactionRetention); {
	case err != nil:
		return problem(key, "%s is neither a number nor a duration such as 30m", quote(s.AutoCompactionRetention))
	case d < 0:
		return problem(key, "must not be negative")
	}
	return nil
}

func (s *settings) checkTLSVersions() error {
	lowest, err := tlsutil.GetTLSVersion(s.TlsMinVersion)
	if err != nil {
		return problem("tls-min-version", "%s is neither TLS1.2 nor TLS1.3", quote(s.TlsMinVersion))
	}
	highest, err := tlsutil.GetTLSVersion(s.TlsMaxVersion)
	if err != nil {
		return problem("tls-max-version", "%s is neither TLS1.2 nor TLS1.3", quote(s.TlsMaxVersion))
	}
	if highest != 0 && lowest > highest {
		return problem("tls-max-version", "%s is below the tls-min-version %s", s.TlsMaxVersion, s.TlsMinVersion)
	}
	if lowest == tls.VersionTLS13 && len(s.CipherSuites) > 0 {
		return problem("cipher-suites", "cannot be chosen when only TLS1.3 is allowed")
	}
	if _, err := tlsutil.GetCipherSuites(s.CipherSuites); err != nil {
		return problem("cipher-suites", "%s", clip(err.Error()))
	}
	return nil
}

func (s *settings) checkFeatures() error {
	gate := features.NewDefaultServerFeatureGate(s.Name, nil).(featuregate.MutableFeatureGate)
	if err := gate.Set(s.ServerFeatures); err != nil {
		return problem("feature-gates", "%s", clip(err.Error()))
	}
	return nil
}

// checkLogLevel covers a panic: etcd takes any word for a level of zap's.
func (s *settings) checkLogLevel() error {
	if _, err := zapcore.ParseLevel(s.LogLevel); err != nil {
		return problem("log-level", "%s is not a log level such as info", quote(s.LogLevel))
	}
	return nil
}

// checkAuthToken has etcd make the token provider, as it does when it starts. The key files are read before, because etcd
// would wait for the other end of a pipe.
func (s *settings) checkAuthToken() error {
	for option := range strings.SplitSeq(s.AuthToken, ",") {
		name, path, _ := strings.Cut(option, "=")
		if name != "pub-key" && name != "priv-key" {
			continue
		}
		if _, err := bootstrap.ReadCertificates(path); err != nil {
			return problem("auth-token", "its jwt specification names a %s that cannot be read: %w", name, err)
		}
	}
	if _, err := auth.NewTokenProvider(zap.NewNop(), s.AuthToken, nil, time.Second); err != nil {
		return problem("auth-token", "is neither simple nor a usable jwt specification: %w", err)
	}
	return nil
}

// checkV2Deprecation covers a panic in the server, which knows these stages only.
func (s *settings) checkV2Deprecation() error {
	stages := []config.V2DeprecationEnum{
		"", config.V2Depr0NotYet, config.V2Depr1WriteOnly, config.V2Depr1WriteOnlySkipCheck,
		config.V2Depr1WriteOnlyDrop, config.V2Depr2Gone,
	}
	if !slices.Contains(stages, s.V2Deprecation) {
		return problem("v2-deprecation", "%s is not a stage that etcd knows", quote(string(s.V2Deprecation)))
	}
	return nil
}
