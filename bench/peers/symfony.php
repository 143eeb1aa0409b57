<?php
// Symfony Messenger for bench/jobs.ts, on its Doctrine transport in Postgres with LISTEN: symfony.js starts it, once to send
// ("send": a JSON array of payloads a line, answered by a line), once a worker ("work": a line for each message handled).

use Doctrine\DBAL\DriverManager;
use Symfony\Component\Messenger\Bridge\Doctrine\Transport\DoctrineTransport;
use Symfony\Component\Messenger\Bridge\Doctrine\Transport\PostgreSqlConnection;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\MessageBus;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;
use Symfony\Component\Messenger\Transport\Serialization\PhpSerializer;
use Symfony\Component\Messenger\Worker;

[, $what, $autoload, $delayMs] = $argv;
require $autoload;
if (!class_exists(DriverManager::class)) {
    // Debian's packages are loaded one by one.
    require 'Doctrine/DBAL/autoload.php';
}

final class Job
{
    public function __construct(public array $payload) {}
}

['host' => $host, 'port' => $port, 'user' => $user, 'path' => $path] = $url = parse_url(getenv('DATABASE_URL'));
$database = DriverManager::getConnection([
    'driver' => 'pdo_pgsql', 'host' => $host, 'port' => $port, 'user' => $user,
    'password' => urldecode($url['pass'] ?? ''), 'dbname' => ltrim($path, '/'),
]);
$options = ['table_name' => 'messenger_messages', 'auto_setup' => false, 'get_notify_timeout' => 1000];
$connection = new PostgreSqlConnection($options, $database);
$transport = new DoctrineTransport($connection, new PhpSerializer());

if ($what === 'send') {
    $connection->setup();
    echo "ready\n";
    while (($line = fgets(STDIN)) !== false) {
        // One transaction: by itself each would wait for the disk.
        $database->transactional(function () use ($line, $transport) {
            foreach (json_decode($line, true) as $payload) {
                $transport->send(new Envelope(new Job($payload)));
            }
        });
        echo "sent\n";
    }
    exit;
}

$handle = function (Job $job) use ($delayMs) {
    if ($delayMs > 0) {
        usleep(1000 * $delayMs);
    }
    fwrite(STDOUT, $job->payload['n'] . ' ' . ($job->payload['sentAt'] ?? '') . "\n");
};
$bus = new MessageBus([new HandleMessageMiddleware(new HandlersLocator([Job::class => [$handle]]))]);
// It waits for a notification of Postgres, not for its own clock.
(new Worker(['bench' => $transport], $bus))->run(['sleep' => 1000]);
