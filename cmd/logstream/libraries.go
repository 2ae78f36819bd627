package logstream

import (
	"bytes"
	"io"
	stdlog "log"

	"github.com/rs/zerolog"
	"google.golang.org/grpc/grpclog"
)

// CaptureOutput redirects the output of libraries to log, so that every line on standard error is JSON. CaptureOutput
// affects the whole process and must be called only once, before any library is used.
func CaptureOutput(log zerolog.Logger) {
	stdlog.SetFlags(0)
	stdlog.SetOutput(log.With().Str("component", "library").Logger())
	warnings := grpcLines{log.With().Str("component", "grpc").Logger()}
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, warnings))
}

// grpcLines logs each line that gRPC writes at error level as a warning.
type grpcLines struct{ log zerolog.Logger }

func (g grpcLines) Write(line []byte) (int, error) {
	g.log.Warn().Msg(string(bytes.TrimSpace(line)))
	return len(line), nil
}
