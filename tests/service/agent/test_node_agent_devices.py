"""A device is told empty only when it says so itself (INV-10)."""

import asyncio

import pytest

from support.agent_node import AgentNodes, StandInDriver, log_path, until


@pytest.fixture
def driver(nodes: AgentNodes) -> StandInDriver:
    nodes.driver = StandInDriver()
    return nodes.driver


async def looked_again(driver: StandInDriver) -> None:
    looks = driver.looks
    await until(lambda: driver.looks >= looks + 2)


async def test_a_process_on_the_device_holds_its_release_back(nodes: AgentNodes, driver: StandInDriver) -> None:
    async with nodes.running():
        first, second = [device.uuid for device in (await nodes.registration()).devices]
        driver.held[second] = [4711]
        await nodes.start("a", "sh", "-c", "exit 3", devices=(0, 1))
        await nodes.start("b", "true", devices=(0,))
        await nodes.ended("b")
        await looked_again(driver)
        assert nodes.kinds("a") == ["TaskStarted", "TaskExited"]
        report = await nodes.report()
        assert [(a.allocation_id, a.state, a.emptied) for a in report.allocations] == [("a", "exited", False)]
        driver.held = {first: [4712]}
        await looked_again(driver)
        assert nodes.kinds("a") == ["TaskStarted", "TaskExited"]
        driver.held.clear()
        assert (await nodes.ended("a")).exit_code == 3


async def test_a_device_that_cannot_be_read_is_not_empty(nodes: AgentNodes, driver: StandInDriver) -> None:
    async with nodes.running():
        await nodes.start("a", "sleep", "1000")
        await nodes.started("a")
        driver.unreadable = "GPU is lost"
        await nodes.stop("a", grace=0)
        await nodes.until(lambda: "TaskExited" in nodes.kinds("a"))
        await looked_again(driver)
        assert nodes.kinds("a") == ["TaskStarted", "TaskExited"]
        driver.unreadable = None
        await nodes.ended("a")


async def test_a_new_agent_goes_on_looking(nodes: AgentNodes, driver: StandInDriver) -> None:
    async with nodes.running():
        driver.held[(await nodes.registration()).devices[0].uuid] = [4711]
        await nodes.start("a", "true")
        await nodes.until(lambda: "TaskExited" in nodes.kinds("a"))
        await looked_again(driver)
    async with nodes.running():
        await looked_again(driver)
        assert nodes.kinds("a") == ["TaskStarted", "TaskExited"]
        driver.held.clear()
        await nodes.ended("a")


async def test_the_output_ends_with_the_processes_not_with_the_devices(
    nodes: AgentNodes, driver: StandInDriver
) -> None:
    async with nodes.running():
        driver.held[(await nodes.registration()).devices[0].uuid] = [4711]
        await nodes.start("a", "sh", "-c", "sleep 0.2; echo done")
        await nodes.started("a")
        async with nodes.http() as http:
            from_the_start = asyncio.create_task(http.get(log_path("a") + "?follow=true"))
            assert (await from_the_start).content == b"done\n"
            await nodes.until(lambda: "TaskExited" in nodes.kinds("a"))
            assert (await http.get(log_path("a") + "?follow=true")).content == b"done\n"
        driver.held.clear()
        await nodes.ended("a")
