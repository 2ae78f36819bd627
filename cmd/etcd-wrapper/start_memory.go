package main

import (
	"math"
	"os"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/rs/zerolog"
)

// limitMemory has Go's garbage collector work harder near the container's limit, where the kernel would end the process
// without a word. GOMEMLIMIT in the environment takes precedence.
func limitMemory(log zerolog.Logger) {
	limit, err := memlimit.Set()
	_, given := os.LookupEnv("GOMEMLIMIT")
	switch {
	case err != nil:
		log.Warn().Err(err).Msg("the container's memory limit is not known")
	case limit == math.MaxInt64:
		log.Info().Msg("memory is not limited")
	case given:
		log.Info().Int64("bytes", limit).Msg("GOMEMLIMIT is what the environment says")
	default:
		log.Info().Int64("bytes", limit).Msg("GOMEMLIMIT is 90% of the container's memory limit")
	}
}
