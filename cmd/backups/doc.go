// Package backups does what the commands `etcd-wrapper backup …` and `etcd-wrapper restore` are for. Package main reads the command
// line for it, and makes exit statuses of its errors.
package backups
